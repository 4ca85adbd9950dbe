import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import type { Api } from './api';
import type { ClustersModel } from './model/clusters';
import type { Settings } from './model/settings';

/** What all plugins of this extension stand on. */
export interface IWorkbench {
  readonly api: Api;
  readonly model: ClustersModel;
  readonly trans: TranslationBundle;
  readonly settings: Settings;
}

export const IWorkbench = new Token<IWorkbench>(
  'mpi-workbench:IWorkbench',
  'The clusters of this user, and requests to the server about them.'
);
