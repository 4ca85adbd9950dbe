import * as React from 'react';

import type { ICluster } from '../contract';
import { Commands } from '../ids';
import { CodeIcon, DashboardIcon, LogsIcon, RestartIcon, ScaleIcon, StopIcon } from './icons';
import { useDesk } from './hooks';

interface IButton {
  command: string;
  label: string;
  icon: () => React.JSX.Element;
}

/** What can be done with a cluster. */
export function CardButtons({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans, run, can, isEnabled } = useDesk();
  const { name } = cluster;
  const buttons: IButton[] = [
    {
      command: Commands.insertCode,
      label: trans.__('Insert code that connects to %1', name),
      icon: CodeIcon
    },
    {
      command: Commands.dashboard,
      label: trans.__('Open the dashboard of %1', name),
      icon: DashboardIcon
    },
    {
      command: Commands.scale,
      label: trans.__('Scale %1', name),
      icon: ScaleIcon
    },
    {
      command: Commands.logs,
      label: trans.__('Show the logs of %1', name),
      icon: LogsIcon
    },
    {
      command: Commands.restart,
      label: trans.__('Restart the ranks of %1', name),
      icon: RestartIcon
    },
    {
      command: Commands.stop,
      label: trans.__('Stop %1', name),
      icon: StopIcon
    }
  ];
  return (
    <div className="wb-Buttons" role="group" aria-label={trans.__('What to do with %1', name)}>
      {buttons
        .filter(its => can(its.command))
        .map(({ command, label, icon: Icon }) => (
          <button
            key={command}
            className="wb-Button"
            type="button"
            title={label}
            aria-label={label}
            disabled={!isEnabled(command, { name })}
            data-command={command}
            onClick={() => {
              run(command, { name });
            }}
          >
            <Icon />
          </button>
        ))}
    </div>
  );
}
