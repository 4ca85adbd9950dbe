import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar, TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { useClock, useSignal } from './components';
import { formatDuration, formatState } from './format';
import { CommandIDs, IWorkbench } from './tokens';
import { watchWhileVisible } from './visibility';

/** The chosen cluster in the status bar. */
export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
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
    const item = ReactWidget.create(<StatusItem {...{ workbench, commands: app.commands }} />);
    bar.registerStatusItem('mpi-workbench:status', {
      item,
      align: 'left',
      rank: 20,
      isActive: () => model.selected !== undefined,
      activeStateChanged: model.changed
    });
    watchWhileVisible(item, model, () => model.selected?.name);
  }
};

function StatusItem(props: {
  workbench: IWorkbench;
  commands: CommandRegistry;
}): React.JSX.Element | null {
  const { model, trans } = props.workbench;
  useSignal(model.changed);
  useSignal(model.pulsesChanged);
  const now = useClock(React.useCallback(() => model.now(), [model]));
  const cluster = model.selected;
  if (!cluster) {
    return null;
  }
  const pulse = model.pulses(cluster).at(-1);
  const parts = [
    cluster.name,
    cluster.state === 'ready' && cluster.busy === null
      ? trans._n('%1 rank', '%1 ranks', cluster.up)
      : formatState(cluster, trans),
    ...(model.connectionState === 'live' ? [] : [trans.__('no connection')]),
    ...(pulse && model.connectionState === 'live'
      ? [trans.__('%1 % CPU', Math.round(pulse.cpu))]
      : []),
    ...(cluster.ends === null
      ? []
      : [trans.__('%1 left', formatDuration(cluster.ends - now, trans))])
  ];
  return (
    <TextItem
      role="button"
      tabIndex={0}
      className="wb-Status"
      source={parts.join(' · ')}
      title={trans.__('Show MPI clusters')}
      onClick={() => void props.commands.execute(CommandIDs.show)}
      onKeyDown={event => {
        if (event.key === 'Enter' || event.key === ' ') {
          event.preventDefault();
          void props.commands.execute(CommandIDs.show);
        }
      }}
    />
  );
}
