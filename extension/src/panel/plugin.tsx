import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { clustersIcon } from '../components';
import { refusalReason } from '../notebooks/clientCode';
import { startDrag } from '../notebooks/drag';
import { warnOfKernel } from '../notebooks/plugin';
import { CommandIDs, describeArgs, IWorkbench, PANEL_ID } from '../tokens';
import { watchWhileVisible } from '../visibility';
import type { IPanelContext } from './context';
import { Panel } from './panel';

/** The panel of clusters at the side. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:sidebar',
  description: 'The panel of clusters.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ILayoutRestorer, ICommandPalette, ILauncher, ITranslator, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null
  ) => {
    const { commands, shell } = app;
    const { trans } = workbench;
    const panel = new ClustersWidget({
      ...workbench,
      commands,
      drag: (cluster, event) => {
        const notebook = (target: Node) => notebooks?.find(({ node }) => node.contains(target));
        startDrag(
          cluster,
          event,
          target => {
            const panel = notebook(target);
            return panel ? refusalReason(panel, trans) : '';
          },
          target => {
            const panel = notebook(target);
            if (panel) {
              void warnOfKernel(workbench, panel);
            }
          }
        );
      }
    });
    panel.id = PANEL_ID;
    panel.title.icon = clustersIcon;
    panel.title.caption = trans.__('MPI Clusters');
    panel.node.setAttribute('role', 'region');
    panel.node.setAttribute('aria-label', trans.__('MPI clusters'));
    shell.add(panel, 'left', { rank: 350, type: 'MPI Clusters' });
    restorer?.add(panel, PANEL_ID);

    commands.addCommand(CommandIDs.show, {
      label: args => (args.isLauncher ? trans.__('MPI Clusters') : trans.__('Show MPI Clusters')),
      caption: trans.__('Show the panel of MPI clusters'),
      icon: clustersIcon,
      describedBy: describeArgs({
        isLauncher: { type: 'boolean', description: 'Whether the label is for the launcher.' }
      }),
      execute: () => {
        shell.activateById(PANEL_ID);
      }
    });
    palette?.addItem({ command: CommandIDs.show, category: trans.__('MPI Clusters') });
    launcher?.add({
      command: CommandIDs.show,
      args: { isLauncher: true },
      // a heading of JupyterLab, in its translation
      category: (translator ?? nullTranslator).load('jupyterlab').__('Other'),
      rank: 20
    });
  }
};

/** The panel as a widget: the server sends pulses while it is visible. */
export class ClustersWidget extends ReactWidget {
  constructor(private readonly context: IPanelContext) {
    super();
    this.addClass('wb-Panel');
    watchWhileVisible(this, context.model);
  }

  protected override render(): React.JSX.Element {
    return <Panel context={this.context} />;
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.querySelector('button')?.focus();
  }
}
