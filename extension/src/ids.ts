/** Commands; all but `newCluster` and `show` take `{name}`, and mean the chosen cluster without one. */
export const Commands = {
  show: 'workbench:show',
  /** Of the plugin of the dialog. */
  newCluster: 'workbench:new-cluster',
  /** Of the plugin of the logs viewer. */
  logs: 'workbench:logs',
  dashboard: 'workbench:dashboard',
  insertCode: 'workbench:insert-code',
  scale: 'workbench:scale',
  restart: 'workbench:restart',
  stop: 'workbench:stop'
} as const;

/** The folder of plugins and settings. */
export const PLUGIN = 'mpi-workbench:plugin';

/** Names in the page. */
export const PANEL = 'workbench-clusters';
