import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { stateOf } from '../format';
import type { ClustersModel } from '../model/clusters';

type States = ReadonlyMap<string, string>;

// Changes of one moment that are said one by one.
const FEW = 3;

/** Return what screen readers say: the clusters whose state has changed last. */
export function useSpoken(model: ClustersModel, trans: TranslationBundle): string {
  const [said, say] = React.useState('');
  React.useEffect(() => {
    let known: States | null = null;
    const look = () => {
      // before the first word of the server nothing is known
      if (model.version !== '') {
        const states = new Map(model.clusters.map(its => [its.name, stateOf(its, trans)]));
        const changes = known === null ? '' : changesOf(known, states, trans);
        known = states;
        say(before => changes || before);
      }
    };
    model.changed.connect(look);
    look();
    return () => {
      model.changed.disconnect(look);
    };
  }, [model, trans]);
  return said;
}

/** Return in words how clusters have changed; empty: they have not. */
export function changesOf(before: States, now: States, trans: TranslationBundle): string {
  const parts = [
    ...[...now]
      .filter(([name, state]) => before.get(name) !== state)
      .map(([name, state]) => trans.__('%1 is %2', name, state)),
    ...[...before.keys()].filter(name => !now.has(name)).map(name => trans.__('%1 has ended', name))
  ];
  return parts.length > FEW
    ? trans._n('%1 cluster has changed', '%1 clusters have changed', parts.length)
    : parts.join('; ');
}
