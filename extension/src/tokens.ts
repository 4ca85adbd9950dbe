import type { TranslationBundle } from '@jupyterlab/translation';
import { type JSONObject, Token } from '@lumino/coreutils';

import type { Api } from './api';
import type { ClustersModel } from './model/clusters';
import type { Settings } from './model/settings';

/** What all plugins of this extension use. */
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

/** Commands; all but `newCluster` and `show` take `{name}`, and act on the selected cluster without it. */
export const CommandIDs = {
  /** Show the panel of the MPI clusters. */
  show: 'mpi-workbench:show',
  /** Open the form of a new cluster. */
  newCluster: 'mpi-workbench:new-cluster',
  /** Open the logs of a cluster in a tab. */
  logs: 'mpi-workbench:logs',
  /** Open the dashboard of a cluster in a tab. */
  dashboard: 'mpi-workbench:dashboard',
  /** Insert code that connects to a cluster into the current notebook. */
  insertCode: 'mpi-workbench:insert-code',
  /** Change the number of ranks of a cluster. */
  scale: 'mpi-workbench:scale',
  /** Restart the ranks of a cluster. */
  restart: 'mpi-workbench:restart',
  /** Stop a cluster. */
  stop: 'mpi-workbench:stop'
} as const;

/** Describe the arguments of a command. */
export function describeArgs(properties: JSONObject): { args: JSONObject } {
  return { args: { type: 'object', properties } };
}

/** The arguments of commands about a cluster. */
export const CLUSTER_ARGS = {
  name: { type: 'string', description: 'The name of a cluster; default: the chosen cluster.' },
  isCard: { type: 'boolean', description: 'Whether the command stands in the menu of a card.' }
};

/** The plugin that has the settings. */
export const PLUGIN_ID = 'mpi-workbench:plugin';

/** The id of the panel in the page. */
export const PANEL_ID = 'mpi-workbench-clusters';
