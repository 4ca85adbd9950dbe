import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ClustersModel } from '../model/clusters';
import { stateOf } from '../words';

/** Return what screen readers say: the clusters whose state is another one than when it was last drawn. */
export function useSpoken(model: ClustersModel, trans: TranslationBundle): string {
  const states = new Map(model.clusters.map(its => [its.name, stateOf(its, trans)]));
  const known = React.useRef(states);
  const said = React.useRef('');
  const news = [...states].filter(([name, state]) => known.current.get(name) !== state);
  const gone = [...known.current.keys()].filter(name => !states.has(name));
  if (news.length + gone.length > 0) {
    said.current = [
      ...news.map(([name, state]) => trans.__('%1 is %2', name, state)),
      ...gone.map(name => trans.__('%1 has ended', name))
    ].join('; ');
  }
  known.current = states;
  return said.current;
}
