import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker, type Notebook, NotebookActions } from '@jupyterlab/notebook';
import { codeIcon } from '@jupyterlab/ui-components';

import { isUp, meant } from '../model/permissions';
import { hint } from '../notify';
import { CLUSTER, Commands, IWorkbench, taking } from '../tokens';
import { clientCode, refusalOf } from './clientCode';

/** The code that connects a notebook to a cluster. */
export const injectPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:inject',
  description: 'Insert code that connects to a cluster into a notebook.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [INotebookTracker, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null
  ) => {
    const { trans } = workbench;
    app.commands.addCommand(Commands.insertCode, {
      label: args =>
        trans.__('Insert Code That Connects to Cluster %1', meant(workbench, args)?.name ?? ''),
      icon: codeIcon,
      describedBy: taking(CLUSTER),
      isEnabled: args => isUp(meant(workbench, args)),
      execute: args => {
        const cluster = meant(workbench, args);
        const panel = notebooks?.currentWidget;
        if (!panel) {
          hint(trans.__('There is no notebook to insert code into: open one, or choose its tab.'));
          return;
        }
        const refusal = refusalOf(panel, trans);
        if (refusal !== '') {
          hint(refusal);
        } else if (cluster) {
          insert(panel.content, clientCode(cluster.name));
          app.shell.activateById(panel.id);
          // the last notebook that had the focus, which another tab may have hidden
          hint(trans.__('The code that connects to %1 is in %2.', cluster.name, panel.title.label));
        }
      }
    });
    palette?.addItem({ command: Commands.insertCode, category: trans.__('MPI Clusters') });
  }
};

/** Write code into the active cell, or into a new one below it unless that is an empty code cell; nothing is run. */
export function insert(notebook: Notebook, code: string): void {
  const isFree = () => {
    const model = notebook.activeCell?.model;
    return model?.type === 'code' && model.sharedModel.source.trim() === '';
  };
  if (!isFree()) {
    NotebookActions.insertBelow(notebook);
  }
  notebook.activeCell?.model.sharedModel.setSource(code);
}
