import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Icon, useSignal } from '../components';
import type { ICluster, IPulse } from '../contract';
import { formatBytes, formatDuration, formatState, formatTime, stateCategory } from '../format';
import { HISTORY_LENGTH } from '../model/clusters';
import { notifyError } from '../notify';
import { CommandIDs } from '../tokens';
import { NowContext, usePanel, usePulses } from './context';

/** The facts about a cluster, and its commands; rendered again only if the cluster is another object. */
export const ClusterCard = React.memo(function Card(props: {
  cluster: ICluster;
  isSelected: boolean;
}): React.JSX.Element {
  const { cluster, isSelected } = props;
  const { model, trans, drag } = usePanel();
  const state = formatState(cluster, trans);
  const title = `wb-cluster-${cluster.name}`;
  const select = () => {
    model.select(cluster.name);
  };
  return (
    <li
      className={`wb-Card${isSelected ? ' wb-mod-chosen' : ''}`}
      aria-labelledby={title}
      aria-current={isSelected ? 'true' : undefined}
      data-cluster={cluster.name}
      data-state={cluster.state}
      onClick={select}
      // the commands of the menu act on the selected cluster
      onContextMenu={select}
    >
      <div
        className="wb-Card-head"
        title={trans.__('Drag into a notebook to insert a cell that connects to %1', cluster.name)}
        onPointerDown={event => {
          drag(cluster, event);
        }}
      >
        <span className={`wb-Dot wb-mod-${stateCategory(cluster)}`} aria-hidden="true" />
        <h3 id={title}>
          <button type="button" className="wb-Name" aria-pressed={isSelected}>
            {cluster.name}
          </button>
        </h3>
        <span className="wb-State">{state}</span>
      </div>
      <Ranks cluster={cluster} />
      <Facts cluster={cluster} />
      {cluster.up > 0 && <Pulse cluster={cluster} />}
      {cluster.error !== null && <LastError cluster={cluster} error={cluster.error} />}
      <CardToolbar cluster={cluster} />
    </li>
  );
});

/** Why the last change of a cluster failed, until the user dismisses it. */
function LastError({ cluster, error }: { cluster: ICluster; error: string }): React.JSX.Element {
  const { name } = cluster;
  const { api, trans } = usePanel();
  const label = trans.__('Dismiss the error of %1', name);
  return (
    <div className="wb-LastError">
      <p className="wb-Error" role="alert">
        {error}
      </p>
      <button
        type="button"
        className="wb-Button"
        title={label}
        aria-label={label}
        onClick={() => {
          api.dismissError(cluster).catch(notifyError(name, trans));
        }}
      >
        <Icon icon={closeIcon} />
      </button>
    </div>
  );
}

function Ranks({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans } = usePanel();
  const { up, ranks } = cluster;
  const fraction = trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks, up);
  return (
    <div className="wb-Ranks">
      <div
        className={`wb-Bar${up < ranks ? ' wb-mod-partial' : ''}`}
        role="meter"
        aria-label={trans.__('Ranks of %1', cluster.name)}
        aria-valuemin={0}
        aria-valuemax={ranks}
        aria-valuenow={up}
        aria-valuetext={fraction}
      >
        <div style={{ width: `${ranks > 0 ? (100 * up) / ranks : 0}%` }} />
      </div>
      <span>{up === ranks ? trans._n('%1 rank', '%1 ranks', ranks) : fraction}</span>
    </div>
  );
}

/** Where a cluster is, why it waits, how long it has. */
export function Facts({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans, settings } = usePanel();
  useSignal(settings.changed);
  const now = React.useContext(NowContext);
  const left = cluster.ends === null ? null : cluster.ends - now;
  // a message that only repeats the state or the reason is left out
  const { reason, state, message } = cluster;
  const hasMessage = reason === null && state !== 'ready' && !['', state].includes(message);
  return (
    <div className="wb-Facts">
      <p>{formatPlace(cluster, trans).join(' · ')}</p>
      {reason !== null && <p>{trans.__('reason: %1', reason)}</p>}
      {cluster.expected !== null && (
        <p>{trans.__('expected start: %1', formatTime(cluster.expected, now))}</p>
      )}
      {hasMessage && <p>{message}</p>}
      {left !== null && (
        <p className={left < 60 * settings.warnMinutes ? 'wb-mod-soon' : undefined}>
          {left > 0
            ? trans.__('%1 of walltime left', formatDuration(left, trans))
            : trans.__('walltime is over')}
        </p>
      )}
    </div>
  );
}

function formatPlace(cluster: ICluster, trans: TranslationBundle): string[] {
  const { nodes, jobs, scheduler, host, threads } = cluster;
  return [
    scheduler,
    ...(jobs.length > 0 ? [trans._n('job %2', 'jobs %2', jobs.length, jobs.join(', '))] : []),
    ...(nodes === null ? [] : [trans._n('%1 node', '%1 nodes', nodes)]),
    ...(threads > 1 ? [trans._n('%1 thread per rank', '%1 threads per rank', threads)] : []),
    ...(cluster.up > 0 ? [host] : [])
  ];
}

/** The load of a cluster at the moment, and its clients. */
export function Pulse({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const element = React.useRef<HTMLDivElement>(null);
  const pulses = usePulses(cluster, element);
  const last = pulses.at(-1);
  return <div ref={element}>{last && <PulseValues {...{ cluster, pulses, last }} />}</div>;
}

function PulseValues(props: {
  cluster: ICluster;
  pulses: readonly IPulse[];
  last: IPulse;
}): React.JSX.Element {
  const { cluster, pulses, last } = props;
  const { trans } = usePanel();
  const cpu = Math.round(last.cpu);
  const memory = trans.__(
    'Memory of the ranks of %1, together: %2',
    cluster.name,
    formatBytes(last.memory)
  );
  return (
    <dl className="wb-Pulse">
      <dt>{trans.__('CPU')}</dt>
      <dd title={trans.__('Mean of the ranks; 100 % is one core')}>
        <Sparkline
          pulses={pulses}
          label={trans.__('CPU of %1 in the last two minutes, now %2 %', cluster.name, cpu)}
        />
        <span>{trans.__('%1 %', cpu)}</span>
      </dd>
      <dt>{trans.__('Memory')}</dt>
      <dd>
        <span role="img" title={memory} aria-label={memory}>
          {formatBytes(last.memory)}
        </span>
      </dd>
      <dt>{trans.__('Clients')}</dt>
      <dd>
        <span>{last.clients > 0 ? last.clients : trans.__('none')}</span>
      </dd>
      {last.clients === 0 && last.idle !== null && cluster.idle_timeout > 0 && (
        <dd className="wb-mod-orphan">
          {trans.__('idle; stops in %1', formatDuration(cluster.idle_timeout - last.idle, trans))}
        </dd>
      )}
    </dl>
  );
}

const WIDTH = 120;
const HEIGHT = 24;

/** Return the points of a line, the last one at the right edge. */
export function sparklinePoints(values: readonly number[], top: number): string {
  const step = WIDTH / (HISTORY_LENGTH - 1);
  const left = WIDTH - step * (values.length - 1);
  return values
    .map((value, at) => {
      const height = HEIGHT * Math.min(1, Math.max(0, value / top));
      return `${(left + step * at).toFixed(1)},${(HEIGHT - height).toFixed(1)}`;
    })
    .join(' ');
}

/** The CPU of the last two minutes. */
export function Sparkline(props: { pulses: readonly IPulse[]; label: string }): React.JSX.Element {
  const values = props.pulses.map(pulse => pulse.cpu);
  // ranks with several threads take several cores
  const top = Math.max(100, ...values);
  const line = sparklinePoints(values, top);
  return (
    <svg
      className="wb-Sparkline"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      {values.length > 1 && (
        <>
          <polygon points={`${line} ${WIDTH},${HEIGHT} ${line.split(',')[0] ?? '0'},${HEIGHT}`} />
          <polyline points={line} />
        </>
      )}
    </svg>
  );
}

/** The commands about a cluster, as buttons. */
export function CardToolbar({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans, commands } = usePanel();
  const { name } = cluster;
  const labels = {
    [CommandIDs.insertCode]: trans.__('Insert code that connects to %1', name),
    [CommandIDs.dashboard]: trans.__('Open the dashboard of %1', name),
    [CommandIDs.logs]: trans.__('Show the logs of %1', name),
    [CommandIDs.scale]: trans.__('Scale %1', name),
    [CommandIDs.restart]: trans.__('Restart the ranks of %1', name),
    [CommandIDs.stop]: trans.__('Stop %1', name)
  };
  const available = Object.entries(labels).filter(([command]) => commands.hasCommand(command));
  // one place for Tab, which arrows move
  const [current, setCurrent] = React.useState(0);
  const stop = Math.min(current, available.length - 1);
  return (
    <div
      className="wb-Buttons"
      role="toolbar"
      aria-label={trans.__('What to do with %1', name)}
      onKeyDown={event => {
        const to = nextStop(event.key, stop, available.length);
        if (to !== undefined) {
          event.preventDefault();
          event.currentTarget.querySelectorAll('button')[to]?.focus();
        }
      }}
    >
      {available.map(([command, label], at) => {
        const isEnabled = commands.isEnabled(command, { name });
        return (
          <button
            key={command}
            className="wb-Button"
            type="button"
            title={label}
            aria-label={label}
            // a button that is disabled would lose the focus
            aria-disabled={!isEnabled}
            tabIndex={at === stop ? 0 : -1}
            data-command={command}
            onFocus={() => {
              setCurrent(at);
            }}
            onClick={() => {
              if (isEnabled) {
                void commands.execute(command, { name });
              }
            }}
          >
            <Icon icon={commands.icon(command, { name })} />
          </button>
        );
      })}
    </div>
  );
}

/** Return the place in a toolbar to which a key leads; undefined: the key leads nowhere. */
function nextStop(key: string, place: number, count: number): number | undefined {
  const places: Record<string, number> = {
    ArrowLeft: (place + count - 1) % count,
    ArrowRight: (place + 1) % count,
    Home: 0,
    End: count - 1
  };
  return places[key];
}
