import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, InputDialog, showDialog } from '@jupyterlab/apputils';
import { refreshIcon, stopIcon } from '@jupyterlab/ui-components';

import { scaleIcon } from './components';
import type { ICluster } from './contract';
import { isChangeable, isStoppable, meant } from './model/permissions';
import { failed, hint } from './notify';
import { CLUSTER, Commands, IWorkbench, taking } from './tokens';

/** What changes clusters. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:commands',
  description: 'Scale, restart and stop clusters.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, workbench: IWorkbench, palette: ICommandPalette | null) => {
    const { model, trans } = workbench;
    const carryOut = async (request: Request, cluster: ICluster) => {
      const { name } = cluster;
      if (request && model.isOver(cluster)) {
        // while somebody was asked
        hint(trans.__('Cluster %1 has ended', name));
      } else {
        await request?.().catch(failed(name, trans));
      }
    };
    const actions = [
      {
        id: Commands.scale,
        label: (name: string) => trans.__('Scale Cluster %1…', name),
        icon: scaleIcon,
        agree: scale,
        isAllowed: isChangeable
      },
      {
        id: Commands.restart,
        label: (name: string) => trans.__('Restart Ranks of Cluster %1…', name),
        icon: refreshIcon,
        agree: restart,
        isAllowed: isChangeable
      },
      {
        id: Commands.stop,
        label: (name: string) => trans.__('Stop Cluster %1…', name),
        icon: stopIcon,
        agree: stop,
        isAllowed: isStoppable
      }
    ];
    for (const { id, label, icon, agree, isAllowed } of actions) {
      app.commands.addCommand(id, {
        label: args => label(meant(workbench, args)?.name ?? ''),
        icon,
        describedBy: taking(CLUSTER),
        isEnabled: args => isAllowed(meant(workbench, args)),
        execute: async args => {
          const cluster = meant(workbench, args);
          if (cluster) {
            await carryOut(await agree(workbench, cluster), cluster);
          }
        }
      });
      palette?.addItem({ command: id, category: trans.__('MPI Clusters') });
    }
  }
};

/** What somebody has agreed to; null: nothing. */
type Request = (() => Promise<void>) | null;

async function scale({ api, trans }: IWorkbench, { name, ranks }: ICluster): Promise<Request> {
  const { button, value } = await InputDialog.getNumber({
    title: trans.__('Scale %1', name),
    label: trans.__('Ranks in total; whole MPI worlds are added or removed'),
    value: ranks,
    okLabel: trans.__('Scale')
  });
  if (!button.accept || value === null) {
    return null;
  }
  if (value === ranks) {
    hint(
      trans._n('Cluster %2 has %1 rank already', 'Cluster %2 has %1 ranks already', ranks, name)
    );
    return null;
  }
  return () => api.scale(name, value);
}

async function restart({ api, trans }: IWorkbench, { name }: ICluster): Promise<Request> {
  const { button } = await showDialog({
    title: trans.__('Restart the ranks of %1?', name),
    body: trans.__('What its ranks hold in memory is lost, and what they compute is begun anew.'),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Restart') })]
  });
  return button.accept ? () => api.restart(name) : null;
}

async function stop({ api, model, trans }: IWorkbench, cluster: ICluster): Promise<Request> {
  const clients = model.pulses(cluster).at(-1)?.clients ?? 0;
  const { button } = await showDialog({
    title: trans.__('Stop %1?', cluster.name),
    body:
      clients > 0
        ? trans._n(
            'Its ranks and its jobs end, and what they hold is lost. %1 client is connected.',
            'Its ranks and its jobs end, and what they hold is lost. %1 clients are connected.',
            clients
          )
        : trans.__('Its ranks and its jobs end, and what they hold is lost.'),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Stop') })]
  });
  return button.accept ? () => api.stop(cluster.name) : null;
}
