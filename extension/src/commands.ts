import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, InputDialog, showDialog } from '@jupyterlab/apputils';
import { refreshIcon, stopIcon } from '@jupyterlab/ui-components';

import { scaleIcon } from './components';
import type { ICluster } from './contract';
import { isChangeable, isStoppable, resolveCluster } from './model/permissions';
import { notifyError, notifyInfo } from './notify';
import { CLUSTER_ARGS, CommandIDs, describeArgs, IWorkbench } from './tokens';

/** What changes clusters. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:commands',
  description: 'Scale, restart and stop clusters.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, workbench: IWorkbench, palette: ICommandPalette | null) => {
    const { model, trans } = workbench;
    const perform = async (action: ConfirmedAction, cluster: ICluster) => {
      const { name } = cluster;
      if (action && model.hasClusterEnded(cluster)) {
        // while the dialog was open
        notifyInfo(trans.__('Cluster %1 has ended', name));
      } else {
        await action?.().catch(notifyError(name, trans));
      }
    };
    const actions = [
      {
        id: CommandIDs.scale,
        label: (name: string) => trans.__('Scale Cluster %1…', name),
        icon: scaleIcon,
        confirm: confirmScale,
        isAllowed: isChangeable
      },
      {
        id: CommandIDs.restart,
        label: (name: string) => trans.__('Restart Ranks of Cluster %1…', name),
        icon: refreshIcon,
        confirm: confirmRestart,
        isAllowed: isChangeable
      },
      {
        id: CommandIDs.stop,
        label: (name: string) => trans.__('Stop Cluster %1…', name),
        icon: stopIcon,
        confirm: confirmStop,
        isAllowed: isStoppable
      }
    ];
    for (const { id, label, icon, confirm, isAllowed } of actions) {
      app.commands.addCommand(id, {
        label: args => label(resolveCluster(workbench, args)?.name ?? ''),
        icon,
        describedBy: describeArgs(CLUSTER_ARGS),
        isEnabled: args => isAllowed(resolveCluster(workbench, args)),
        execute: async args => {
          const cluster = resolveCluster(workbench, args);
          if (cluster) {
            await perform(await confirm(workbench, cluster), cluster);
          }
        }
      });
      palette?.addItem({ command: id, category: trans.__('MPI Clusters') });
    }
  }
};

/** The action that the user has confirmed; null: none. */
type ConfirmedAction = (() => Promise<void>) | null;

async function confirmScale(
  { api, model, trans }: IWorkbench,
  cluster: ICluster
): Promise<ConfirmedAction> {
  const { name } = cluster;
  const { button, value } = await InputDialog.getNumber({
    title: trans.__('Scale %1', name),
    label: trans.__('Ranks; a new MPI world starts, and all results move to it'),
    value: cluster.ranks,
    okLabel: trans.__('Scale')
  });
  if (!button.accept || value === null) {
    return null;
  }
  // another page may have scaled the cluster while the dialog was open
  if (value === model.cluster(name)?.ranks) {
    notifyInfo(
      trans._n('Cluster %2 has %1 rank already', 'Cluster %2 has %1 ranks already', value, name)
    );
    return null;
  }
  return () => api.scale(cluster, value);
}

async function confirmRestart(
  { api, trans }: IWorkbench,
  cluster: ICluster
): Promise<ConfirmedAction> {
  const { button } = await showDialog({
    title: trans.__('Restart the ranks of %1?', cluster.name),
    body: trans.__('Data in memory on the ranks will be lost and running tasks will start over.'),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Restart') })]
  });
  return button.accept ? () => api.restart(cluster) : null;
}

async function confirmStop(
  { api, model, trans }: IWorkbench,
  cluster: ICluster
): Promise<ConfirmedAction> {
  const clients = model.pulses(cluster).at(-1)?.clients ?? 0;
  const { button } = await showDialog({
    title: trans.__('Stop %1?', cluster.name),
    body:
      clients > 0
        ? trans._n(
            'Its ranks and jobs will end, and their data in memory will be lost. %1 client is connected.',
            'Its ranks and jobs will end, and their data in memory will be lost. %1 clients are connected.',
            clients
          )
        : trans.__('Its ranks and jobs will end, and their data in memory will be lost.'),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Stop') })]
  });
  return button.accept ? () => api.stop(cluster) : null;
}
