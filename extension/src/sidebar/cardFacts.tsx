import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ICluster } from '../contract';
import { clock, duration } from '../words';
import { Now, useDesk, useSignal } from './hooks';

/** Where a cluster is, why it waits, how long it has. */
export function CardFacts({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans, settings } = useDesk();
  useSignal(settings.changed);
  const now = React.useContext(Now);
  const left = cluster.ends === null ? null : cluster.ends - now;
  // what says no more than the state or the reason does not
  const { reason, state, message } = cluster;
  const tells = reason === null && state !== 'ready' && !['', state].includes(message);
  return (
    <div className="wb-Facts">
      <p>{places(cluster, trans).join(' · ')}</p>
      {reason !== null && <p>{trans.__('waits: %1', reason)}</p>}
      {cluster.expected !== null && (
        <p>{trans.__('expected start: %1', clock(cluster.expected, now))}</p>
      )}
      {tells && <p>{message}</p>}
      {left !== null && (
        <p className={left < 60 * settings.warnMinutes ? 'wb-mod-soon' : undefined}>
          {left > 0
            ? trans.__('%1 of walltime left', duration(left, trans))
            : trans.__('walltime is over')}
        </p>
      )}
    </div>
  );
}

function places(cluster: ICluster, trans: TranslationBundle): string[] {
  const { nodes, jobs, scheduler, host, threads } = cluster;
  return [
    scheduler,
    ...(jobs.length > 0 ? [trans._n('job %2', 'jobs %2', jobs.length, jobs.join(', '))] : []),
    ...(nodes === null ? [] : [trans._n('%1 node', '%1 nodes', nodes)]),
    ...(threads > 1 ? [trans._n('%1 thread per rank', '%1 threads per rank', threads)] : []),
    ...(cluster.up > 0 ? [host] : [])
  ];
}
