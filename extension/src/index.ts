/** The extension: one plugin for each feature, and each can be disabled. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { Api } from './api';
import { formPlugin } from './cluster-form/plugin';
import { commandsPlugin } from './commands';
import { dashboardsPlugin } from './dashboards/plugin';
import { logsPlugin } from './logs/plugin';
import { ClustersModel } from './model/clusters';
import { persistSelection, Settings } from './model/settings';
import { notebooksPlugin } from './notebooks/plugin';
import { notificationsPlugin } from './notifications/plugin';
import { panelPlugin } from './panel/plugin';
import { statusBarPlugin } from './statusBar';
import { CommandIDs, IWorkbench, PLUGIN_ID } from './tokens';

/** What all other plugins use: the model, the requests, the settings. */
const workbenchPlugin: JupyterFrontEndPlugin<IWorkbench> = {
  id: PLUGIN_ID,
  description: 'The clusters of this user, and requests to the server about them.',
  autoStart: true,
  provides: IWorkbench,
  optional: [ISettingRegistry, ITranslator, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    translator: ITranslator | null,
    stateDB: IStateDB | null
  ): IWorkbench => {
    const api = new Api(app.serviceManager.serverSettings);
    const model = new ClustersModel({
      clusters: () => api.clusters(),
      connect: events => api.connect(events)
    });
    const settings = new Settings();
    if (registry) {
      registry.load(PLUGIN_ID).then(
        stored => {
          settings.load(stored);
        },
        (error: unknown) => {
          console.error('the settings of the workbench could not be read', error);
        }
      );
    }
    if (stateDB) {
      void persistSelection(model, stateDB);
    }
    // the targets, the labels and the permissions of commands depend on the clusters
    model.changed.connect(() => {
      for (const id of Object.values(CommandIDs).filter(id => app.commands.hasCommand(id))) {
        app.commands.notifyCommandChanged(id);
      }
    });
    // the page comes first
    void app.restored.then(() => {
      model.start();
    });
    const trans = (translator ?? nullTranslator).load('mpi-workbench');
    return { api, model, trans, settings };
  }
};

export default [
  workbenchPlugin,
  panelPlugin,
  commandsPlugin,
  dashboardsPlugin,
  notebooksPlugin,
  statusBarPlugin,
  notificationsPlugin,
  formPlugin,
  logsPlugin
];
