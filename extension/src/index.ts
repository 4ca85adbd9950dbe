/** The extension: one plugin for each thing that it does, and each can be disabled. */

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
import { keepChoice, Settings } from './model/settings';
import { injectPlugin } from './notebooks/plugin';
import { notificationsPlugin } from './notifications/plugin';
import { sidebarPlugin } from './panel/plugin';
import { statusPlugin } from './statusBar';
import { Commands, IWorkbench, PLUGIN } from './tokens';

/** What all other plugins stand on: the model, the requests, the settings. */
const plugin: JupyterFrontEndPlugin<IWorkbench> = {
  id: PLUGIN,
  description: 'The clusters of this user, and requests to the server about them.',
  autoStart: true,
  provides: IWorkbench,
  optional: [ISettingRegistry, ITranslator, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    translator: ITranslator | null,
    memory: IStateDB | null
  ): IWorkbench => {
    const api = new Api(app.serviceManager.serverSettings);
    const model = new ClustersModel({
      clusters: () => api.clusters(),
      connect: events => api.connect(events)
    });
    const settings = new Settings();
    if (registry) {
      registry.load(PLUGIN).then(
        stored => {
          settings.follow(stored);
        },
        (error: unknown) => {
          console.error('the settings of the workbench could not be read', error);
        }
      );
    }
    if (memory) {
      void keepChoice(model, memory);
    }
    // what commands mean, are called and may do depends on the clusters
    model.changed.connect(() => {
      for (const id of Object.values(Commands).filter(its => app.commands.hasCommand(its))) {
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
  plugin,
  sidebarPlugin,
  commandsPlugin,
  dashboardsPlugin,
  injectPlugin,
  statusPlugin,
  notificationsPlugin,
  formPlugin,
  logsPlugin
];
