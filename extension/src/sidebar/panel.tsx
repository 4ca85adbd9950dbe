import * as React from 'react';

import { Commands } from '../ids';
import { hindrance } from '../words';
import { Card } from './card';
import { AddIcon } from './icons';
import { Desk, Now, useClock, useDesk, useSignal, type IDesk } from './hooks';
import { Ended } from './ended';
import { BrokenRecord, LinkNotice, Nothing, OutdatedNotice } from './notices';
import { Start } from './starts';
import { useSpoken } from './spoken';

/** The panel of clusters. */
export function Panel({ desk }: { desk: IDesk }): React.JSX.Element {
  const now = useClock(React.useCallback(() => desk.model.now(), [desk]));
  return (
    <Desk.Provider value={desk}>
      <Now.Provider value={now}>
        <Head />
        <Clusters />
      </Now.Provider>
    </Desk.Provider>
  );
}

function Head(): React.JSX.Element {
  const { model, trans, run, can } = useDesk();
  useSignal(model.changed);
  const hindered = hindrance(model, trans);
  return (
    <div className="wb-Head">
      <h2>{trans.__('MPI Clusters')}</h2>
      {can(Commands.newCluster) && (
        <button
          type="button"
          className="wb-Button"
          title={hindered || trans.__('New cluster…')}
          aria-label={trans.__('New cluster')}
          disabled={hindered !== ''}
          onClick={() => {
            run(Commands.newCluster);
          }}
        >
          <AddIcon />
        </button>
      )}
    </div>
  );
}

function Clusters(): React.JSX.Element {
  const { model, trans } = useDesk();
  useSignal(model.changed);
  const { clusters, broken, starts, state } = model;
  // those that have a cluster by now are seen by that
  const others = starts.filter(
    its => its.state === 'failed' || its.name === null || !model.cluster(its.name)
  );
  const isEmpty = clusters.length + broken.length + others.length === 0;
  const isKnown = state === 'live' || state === 'connecting';
  return (
    <div className="wb-Body" aria-busy={state === 'connecting'}>
      <LinkNotice />
      <OutdatedNotice />
      {isEmpty && isKnown && <Nothing />}
      {!isEmpty && (
        <ul
          className={`wb-List${isKnown ? '' : ' wb-mod-old'}`}
          role="list"
          aria-label={trans.__('MPI clusters')}
        >
          {others.map(its => (
            <Start key={its.id} start={its} />
          ))}
          {clusters.map(its => (
            <Card key={its.id} cluster={its} isChosen={its === model.chosen} />
          ))}
          {broken.map(its => (
            <BrokenRecord key={its.name} broken={its} />
          ))}
        </ul>
      )}
      <Ended />
      <p className="wb-Spoken" aria-live="polite">
        {useSpoken(model, trans)}
      </p>
    </div>
  );
}
