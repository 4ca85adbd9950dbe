import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import {
  INotebookTracker,
  type Notebook,
  NotebookActions,
  type NotebookPanel
} from '@jupyterlab/notebook';
import { codeIcon } from '@jupyterlab/ui-components';

import { isUp, resolveCluster } from '../model/permissions';
import { detailsActions, notifyInfo } from '../notify';
import { CLUSTER_ARGS, CommandIDs, describeArgs, IWorkbench } from '../tokens';
import { clientCode, failureReason, refusalReason } from './clientCode';
import { bindSelection } from './selection';

/** The code that connects a notebook to a cluster. */
export const notebooksPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:inject',
  description:
    'Insert code that connects to a cluster into a notebook, and select the cluster of the current notebook.',
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
    if (notebooks) {
      bindSelection(notebooks, workbench.model);
    }
    app.commands.addCommand(CommandIDs.insertCode, {
      label: args =>
        trans.__(
          'Insert Code That Connects to Cluster %1',
          resolveCluster(workbench, args)?.name ?? ''
        ),
      icon: codeIcon,
      describedBy: describeArgs(CLUSTER_ARGS),
      isEnabled: args => isUp(resolveCluster(workbench, args)),
      execute: args => {
        const cluster = resolveCluster(workbench, args);
        const panel = notebooks?.currentWidget;
        if (!panel) {
          notifyInfo(
            trans.__('There is no notebook to insert code into: open one, or choose its tab.')
          );
          return;
        }
        const refusal = refusalReason(panel, trans);
        if (refusal !== '') {
          notifyInfo(refusal);
        } else if (cluster) {
          insertCode(panel.content, clientCode(cluster.name));
          app.shell.activateById(panel.id);
          // the last notebook that had the focus, which another tab may have hidden
          notifyInfo(
            trans.__('The code that connects to %1 is in %2.', cluster.name, panel.title.label)
          );
          void warnOfKernel(workbench, panel);
        }
      }
    });
    palette?.addItem({ command: CommandIDs.insertCode, category: trans.__('MPI Clusters') });
  }
};

/** Notify the user if the kernel of a notebook has no workbench. */
export async function warnOfKernel(
  { api, trans }: IWorkbench,
  panel: NotebookPanel
): Promise<void> {
  // without an answer of the server, the kernel reports what it lacks when the code runs
  const reason = failureReason(panel, await api.kernels().catch(() => []), trans);
  if (reason !== '') {
    notifyInfo(reason, detailsActions(trans.__('Kernel'), reason, trans));
  }
}

/** Write code into the active cell, or into a new one below it unless that is an empty code cell; nothing is run. */
export function insertCode(notebook: Notebook, code: string): void {
  const isEmptyCode = () => {
    const model = notebook.activeCell?.model;
    return model?.type === 'code' && model.sharedModel.source.trim() === '';
  };
  if (!isEmptyCode()) {
    NotebookActions.insertBelow(notebook);
  }
  notebook.activeCell?.model.sharedModel.setSource(code);
}
