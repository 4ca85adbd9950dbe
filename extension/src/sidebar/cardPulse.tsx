import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ICluster, IPulse } from '../contract';
import { bytes, duration } from '../words';
import { useDesk, usePulses } from './hooks';
import { Sparkline } from './sparkline';

/** What a cluster does at the moment, and whether anybody uses it. */
export function CardPulse({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const element = React.useRef<HTMLDivElement>(null);
  const pulses = usePulses(cluster, element);
  const last = pulses.at(-1);
  return <div ref={element}>{last && <Beat {...{ cluster, pulses, last }} />}</div>;
}

function Beat(props: {
  cluster: ICluster;
  pulses: readonly IPulse[];
  last: IPulse;
}): React.JSX.Element {
  const { cluster, pulses, last } = props;
  const { trans } = useDesk();
  const cpu = Math.round(last.cpu);
  const memory = trans.__(
    'Memory of the ranks of %1, together: %2',
    cluster.name,
    bytes(last.memory)
  );
  return (
    <>
      <div className="wb-Pulse">
        <Sparkline
          pulses={pulses}
          label={trans.__('CPU of %1 in the last two minutes, now %2 %', cluster.name, cpu)}
        />
        <span>{trans.__('%1 % CPU', cpu)}</span>
        <span role="img" title={memory} aria-label={memory}>
          {bytes(last.memory)}
        </span>
      </div>
      <p className={last.clients === 0 ? 'wb-Users wb-mod-orphan' : 'wb-Users'}>
        {users(cluster, last, trans)}
      </p>
    </>
  );
}

function users(cluster: ICluster, last: IPulse, trans: TranslationBundle): string {
  if (last.clients > 0) {
    return trans._n('%1 client', '%1 clients', last.clients);
  }
  if (last.idle === null || cluster.idle_timeout <= 0) {
    return trans.__('nobody uses it');
  }
  const left = duration(cluster.idle_timeout - last.idle, trans);
  return trans.__('nobody uses it; ends in %1', left);
}
