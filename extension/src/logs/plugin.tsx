import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { listIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { type ILogSource, logsOf } from '../api';
import { meant } from '../model/permissions';
import { CLUSTER, Commands, IWorkbench, taking } from '../tokens';
import { LogsModel, withoutIt } from './logsModel';
import { Viewer } from './viewer';

/** The logs of clusters as tabs, which come back with the workspace. */
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
    app.commands.addCommand(Commands.logs, {
      label: args => trans.__('Show Logs of Cluster %1', meant(workbench, args)?.name ?? ''),
      icon: listIcon,
      describedBy: taking({
        ...CLUSTER,
        id: { type: 'string', description: 'The identity of a cluster that has ended.' },
        file: { type: 'string', description: 'A log, as head or rank-3; default: the first.' }
      }),
      isEnabled: args => typeof args.name === 'string' || meant(workbench, args) !== undefined,
      execute: async args => {
        // the logs of a cluster that has ended are there, too
        const name = typeof args.name === 'string' ? args.name : meant(workbench, args)?.name;
        if (name === undefined) {
          return;
        }
        const file = typeof args.file === 'string' ? args.file : null;
        // of one that has ended, and whose name may be another's
        const id = typeof args.id === 'string' ? args.id : '';
        let tab = tracker.find(its => its.model.name === name && its.cluster === id);
        if (!tab) {
          const source = logsOf(api, name, id);
          const logs = new LogsModel(name, source, id === '' ? model : withoutIt(model), file);
          const added = (tab = new LogsTab(logs, source, trans, id));
          // a page of Notebook 7 holds one document
          app.shell.add(tab, labShell ? 'main' : 'down', { type: 'MPI Cluster' });
          await tracker.add(tab);
          onAnotherFile(logs, () => void tracker.save(added));
        } else if (file !== null) {
          tab.model.choose(file);
        }
        app.shell.activateById(tab.id);
      }
    });
    palette?.addItem({ command: Commands.logs, category: trans.__('MPI Clusters') });
    void restorer?.restore(tracker, {
      command: Commands.logs,
      args: ({ model: { name, file }, cluster }) => ({ name, file, id: cluster }),
      name: ({ model: { name }, cluster }) => (cluster === '' ? name : `${name}/${cluster}`)
    });
  }
};

function onAnotherFile(logs: LogsModel, save: () => void): void {
  let { file } = logs;
  logs.changed.connect(() => {
    if (logs.file !== file) {
      ({ file } = logs);
      save();
    }
  });
}

/** The logs of a cluster as a tab: they are read while it can be seen. */
export class LogsTab extends ReactWidget {
  constructor(
    readonly model: LogsModel,
    private readonly source: ILogSource,
    private readonly trans: TranslationBundle,
    /** The identity of the cluster, if it has ended; empty: whichever has the name. */
    readonly cluster = ''
  ) {
    super();
    this.id = `mpi-workbench-logs-${model.name}-${cluster}`;
    this.addClass('wb-Logs');
    // it is activated before it is drawn
    this.node.tabIndex = -1;
    this.title.label = trans.__('%1: logs', model.name);
    this.title.caption = trans.__('Logs of cluster %1', model.name);
    this.title.icon = listIcon;
    this.title.closable = true;
    document.addEventListener('visibilitychange', this.look);
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this.look);
    this.model.dispose();
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    const { model, trans, source } = this;
    return <Viewer model={model} trans={trans} address={source.address} />;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.look();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.look();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.look();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    (this.node.querySelector<HTMLElement>('select:enabled, .wb-Logs-text') ?? this.node).focus();
  }

  private readonly look = (): void => {
    this.model.see(this.isVisible && !document.hidden);
  };
}
