import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import type { Api } from './api';
import type { ClustersModel } from './model/clusters';

/** What a user has chosen; always as it is now. */
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
}

export const IWorkbench = new Token<IWorkbench>(
  'mpi-workbench:IWorkbench',
  'The clusters of this user, and requests to the server about them.'
);
