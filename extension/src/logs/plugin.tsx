import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { listIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import type { ILogSource } from '../api';
import { resolveCluster } from '../model/permissions';
import { CLUSTER_ARGS, CommandIDs, describeArgs, IWorkbench } from '../tokens';
import { observeVisibility } from '../visibility';
import { endedClusters, LogsModel } from './logsModel';
import { LogViewer } from './viewer';

/** The logs of clusters as tabs, which are restored with the workspace. */
export const logsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:logs',
  description: 'The logs of clusters, as tabs.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ) => {
    const { api, model, trans } = workbench;
    const tracker = new WidgetTracker<LogsTab>({ namespace: 'mpi-workbench-logs' });
    app.commands.addCommand(CommandIDs.logs, {
      label: args =>
        trans.__('Show Logs of Cluster %1', resolveCluster(workbench, args)?.name ?? ''),
      icon: listIcon,
      describedBy: describeArgs({
        ...CLUSTER_ARGS,
        id: { type: 'string', description: 'The identity of a cluster that has ended.' },
        file: { type: 'string', description: 'A log, as head or rank-3; default: the first.' }
      }),
      isEnabled: args =>
        typeof args.name === 'string' || resolveCluster(workbench, args) !== undefined,
      execute: async args => {
        // the logs of a cluster that has ended are there, too
        const name =
          typeof args.name === 'string' ? args.name : resolveCluster(workbench, args)?.name;
        if (name === undefined) {
          return;
        }
        const file = typeof args.file === 'string' ? args.file : null;
        // of one that has ended, and whose name may be another's
        const id = typeof args.id === 'string' ? args.id : '';
        let tab = tracker.find(tab => tab.model.name === name && tab.clusterId === id);
        if (!tab) {
          const source = api.logs(name, id);
          const logs = new LogsModel(name, source, id === '' ? model : endedClusters(model), file);
          const newTab = (tab = new LogsTab(logs, source, trans, id));
          // a page of Notebook 7 holds one document
          app.shell.add(tab, labShell ? 'main' : 'down', { type: 'MPI Cluster' });
          await tracker.add(tab);
          onFileChanged(logs, () => void tracker.save(newTab));
        } else if (file !== null) {
          tab.model.select(file);
        }
        app.shell.activateById(tab.id);
      }
    });
    palette?.addItem({ command: CommandIDs.logs, category: trans.__('MPI Clusters') });
    void restorer?.restore(tracker, {
      command: CommandIDs.logs,
      args: ({ model: { name, file }, clusterId }) => ({ name, file, id: clusterId }),
      name: ({ model: { name }, clusterId }) => (clusterId === '' ? name : `${name}/${clusterId}`)
    });
  }
};

function onFileChanged(logs: LogsModel, save: () => void): void {
  let { file } = logs;
  logs.changed.connect(() => {
    if (logs.file !== file) {
      ({ file } = logs);
      save();
    }
  });
}

/** The logs of a cluster as a tab: they are read while the tab is visible. */
export class LogsTab extends MainAreaWidget<ReactWidget> {
  constructor(
    readonly model: LogsModel,
    source: ILogSource,
    trans: TranslationBundle,
    /** The identity of the cluster, if it has ended; empty: whichever has the name. */
    readonly clusterId = ''
  ) {
    const { downloadUrl } = source;
    super({ content: ReactWidget.create(<LogViewer {...{ model, trans, downloadUrl }} />) });
    this.id = `mpi-workbench-logs-${model.name}-${clusterId}`;
    this.title.label = trans.__('%1: logs', model.name);
    this.title.caption = trans.__('Logs of cluster %1', model.name);
    this.title.icon = listIcon;
    this.toolbar.hide();
    this.content.addClass('wb-Logs');
    this.content.node.setAttribute('aria-label', this.title.caption);
    observeVisibility(this.content, isVisible => {
      model.setVisible(isVisible);
    });
  }

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    // a tab may be activated before it is rendered: the content has the focus then
    this.content.node.querySelector<HTMLElement>('select:enabled, .wb-Logs-text')?.focus();
  }
}
