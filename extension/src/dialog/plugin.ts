import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IStateDB } from '@jupyterlab/statedb';
import { addIcon } from '@jupyterlab/ui-components';

import { Commands, taking } from '../ids';
import { IWorkbench } from '../tokens';
import { hindrance } from '../words';
import { sourceOf } from './contract';
import { NewClusterDialog } from './dialog';
import { FormModel } from './formModel';

// Where what was filled in is remembered.
const KEY = 'mpi-workbench:new-cluster';

/** The dialog for a new cluster. */
export const dialogPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:dialog',
  description: 'The dialog for a new cluster.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [IStateDB, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    memory: IStateDB | null,
    palette: ICommandPalette | null
  ) => {
    if (PageConfig.getOption('workbenchStarts') === 'false') {
      return; // its site has the server start none
    }
    const { trans } = workbench;
    let isOpen = false;
    app.commands.addCommand(Commands.newCluster, {
      label: args => (args.isMenu ? trans.__('MPI Cluster…') : trans.__('New Cluster…')),
      icon: args => (args.isPalette ? undefined : addIcon),
      describedBy: taking({
        isMenu: { type: 'boolean', description: 'Whether it stands in a menu of what is new.' },
        isPalette: { type: 'boolean', description: 'Whether it stands in the command palette.' }
      }),
      isEnabled: () => hindrance(workbench.model, trans) === '',
      execute: async () => {
        if (!isOpen) {
          isOpen = true;
          try {
            await ask(workbench, memory);
          } finally {
            isOpen = false;
          }
        }
      }
    });
    palette?.addItem({
      command: Commands.newCluster,
      category: trans.__('MPI Clusters'),
      args: { isPalette: true }
    });
  }
};

async function ask({ api, model, trans }: IWorkbench, memory: IStateDB | null): Promise<void> {
  const form = new FormModel(sourceOf(api), model);
  const dialog = new NewClusterDialog(form, trans);
  try {
    const closed = dialog.launch();
    void recalled(memory).then(values => form.load(values));
    await closed;
    if (form.form) {
      // what cannot be remembered is filled in again
      memory?.save(KEY, { ...form.values }).catch(() => undefined);
    }
  } finally {
    form.dispose();
  }
}

async function recalled(memory: IStateDB | null): Promise<unknown> {
  try {
    return await memory?.fetch(KEY);
  } catch {
    return undefined;
  }
}
