import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatState } from '../format';
import type { ClustersModel } from '../model/clusters';

type States = ReadonlyMap<string, string>;

// The number of simultaneous changes that are announced one by one.
const MAX_LISTED = 3;

/** Return the announcement for screen readers: the clusters whose state has changed last. */
export function useAnnouncement(model: ClustersModel, trans: TranslationBundle): string {
  const [announcement, setAnnouncement] = React.useState('');
  React.useEffect(() => {
    let previous: States | null = null;
    const update = () => {
      // before the first state of the server nothing is known
      if (model.version !== '') {
        const states = new Map(
          model.clusters.map(cluster => [cluster.name, formatState(cluster, trans)])
        );
        const changes = previous === null ? '' : describeChanges(previous, states, trans);
        previous = states;
        setAnnouncement(before => changes || before);
      }
    };
    model.changed.connect(update);
    update();
    return () => {
      model.changed.disconnect(update);
    };
  }, [model, trans]);
  return announcement;
}

/** Return a description of how clusters have changed; empty: they have not. */
export function describeChanges(before: States, now: States, trans: TranslationBundle): string {
  const parts = [
    ...[...now]
      .filter(([name, state]) => before.get(name) !== state)
      .map(([name, state]) => trans.__('%1 is %2', name, state)),
    ...[...before.keys()].filter(name => !now.has(name)).map(name => trans.__('%1 has ended', name))
  ];
  return parts.length > MAX_LISTED
    ? trans._n('%1 cluster has changed', '%1 clusters have changed', parts.length)
    : parts.join('; ');
}
