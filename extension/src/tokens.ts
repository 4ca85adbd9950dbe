import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { Api } from './api';
import type { ClustersModel } from './model/clusters';

/** What a user has chosen. */
export interface ISettings {
  /** Whether clusters are spoken of in notifications. */
  notifications: boolean;
  /** Minutes before the end of a job at which one is warned. */
  warnMinutes: number;
  /** The page that a dashboard is opened at. */
  dashboardPage: string;
}

/** What all plugins of this extension stand on. */
export interface IWorkbench {
  readonly api: Api;
  readonly model: ClustersModel;
  readonly trans: TranslationBundle;
  readonly settings: ISettings;
  readonly settingsChanged: ISignal<unknown, void>;
}

export const IWorkbench = new Token<IWorkbench>(
  'mpi-workbench:IWorkbench',
  'The clusters of this user, and requests to the server about them.'
);
