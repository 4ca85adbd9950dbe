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
  const known = buttons.filter(its => can(its.command));
  // one place for Tab, which arrows move
  const [current, setCurrent] = React.useState(0);
  const stop = Math.min(current, known.length - 1);
  return (
    <div
      className="wb-Buttons"
      role="toolbar"
      aria-label={trans.__('What to do with %1', name)}
      onKeyDown={event => {
        const to = placeAfter(event.key, stop, known.length);
        if (to !== undefined) {
          event.preventDefault();
          event.currentTarget.querySelectorAll('button')[to]?.focus();
        }
      }}
    >
      {known.map(({ command, label, icon: Icon }, at) => {
        const isAllowed = isEnabled(command, { name });
        return (
          <button
            key={command}
            className="wb-Button"
            type="button"
            title={label}
            aria-label={label}
            // a button that is disabled would lose the focus
            aria-disabled={!isAllowed}
            tabIndex={at === stop ? 0 : -1}
            data-command={command}
            onFocus={() => {
              setCurrent(at);
            }}
            onClick={() => {
              if (isAllowed) {
                run(command, { name });
              }
            }}
          >
            <Icon />
          </button>
        );
      })}
    </div>
  );
}

/** Return the place in a toolbar to which a key leads; undefined: the key leads nowhere. */
function placeAfter(key: string, place: number, count: number): number | undefined {
  const places: Record<string, number> = {
    ArrowLeft: (place + count - 1) % count,
    ArrowRight: (place + 1) % count,
    Home: 0,
    End: count - 1
  };
  return places[key];
}
