import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar, TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { useClock, useSignal } from './components';
import { duration, stateOf } from './format';
import { Commands, IWorkbench } from './tokens';
import { watchWhileSeen } from './visibility';

/** The chosen cluster in the status bar. */
export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:status',
  description: 'The chosen cluster in the status bar.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [IStatusBar],
  activate: (app: JupyterFrontEnd, workbench: IWorkbench, bar: IStatusBar | null) => {
    if (!bar) {
      return; // Notebook 7 has none
    }
    const { model } = workbench;
    const item = ReactWidget.create(<Status {...{ workbench, commands: app.commands }} />);
    bar.registerStatusItem('mpi-workbench:status', {
      item,
      align: 'left',
      rank: 20,
      isActive: () => model.chosen !== undefined,
      activeStateChanged: model.changed
    });
    watchWhileSeen(item, model, () => model.chosen?.name);
  }
};

function Status(props: {
  workbench: IWorkbench;
  commands: CommandRegistry;
}): React.JSX.Element | null {
  const { model, trans } = props.workbench;
  useSignal(model.changed);
  useSignal(model.pulsed);
  const now = useClock(React.useCallback(() => model.now(), [model]));
  const cluster = model.chosen;
  if (!cluster) {
    return null;
  }
  const pulse = model.pulses(cluster).at(-1);
  const parts = [
    cluster.name,
    cluster.state === 'ready' && cluster.busy === null
      ? trans._n('%1 rank', '%1 ranks', cluster.up)
      : stateOf(cluster, trans),
    ...(model.state === 'live' ? [] : [trans.__('no connection')]),
    ...(pulse && model.state === 'live' ? [trans.__('%1 % CPU', Math.round(pulse.cpu))] : []),
    ...(cluster.ends === null ? [] : [trans.__('%1 left', duration(cluster.ends - now, trans))])
  ];
  return (
    <TextItem
      role="button"
      tabIndex={0}
      className="wb-Status"
      source={parts.join(' · ')}
      title={trans.__('Show MPI clusters')}
      onClick={() => void props.commands.execute(Commands.show)}
      onKeyDown={event => {
        if (event.key === 'Enter' || event.key === ' ') {
          event.preventDefault();
          void props.commands.execute(Commands.show);
        }
      }}
    />
  );
}
