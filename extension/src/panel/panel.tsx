import * as React from 'react';

import { AddIcon, useClock, useSignal, Verbatim } from '../components';
import type { IEnded, IStart } from '../contract';
import { clock, duration, hindrance } from '../format';
import { failed } from '../notify';
import { Commands } from '../tokens';
import { Card } from './card';
import { Desk, type IDesk, Now, useDesk } from './context';
import { useSpoken } from './liveRegion';
import { BrokenRecord, LinkNotice, Nothing, OutdatedNotice } from './notices';

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

/** A start that has not come to its end, or has failed. */
export function Start({ start }: { start: IStart }): React.JSX.Element {
  const { api, trans } = useDesk();
  const now = React.useContext(Now);
  const hasFailed = start.state === 'failed';
  const name = start.name ?? trans.__('new cluster');
  return (
    <li className="wb-Card wb-Start" data-state={start.state}>
      <div className="wb-Card-head">
        <span className={`wb-Dot wb-mod-${hasFailed ? 'bad' : 'waiting'}`} aria-hidden="true" />
        <h3>{name}</h3>
        <span className="wb-State">
          {hasFailed
            ? trans.__('start failed')
            : trans.__('starting for %1', duration(now - start.since, trans))}
        </span>
      </div>
      {start.message !== '' && <p className={hasFailed ? 'wb-Error' : ''}>{start.message}</p>}
      {hasFailed && start.log !== '' && (
        <details>
          <summary>{trans.__('The end of its log')}</summary>
          <Verbatim text={start.log} label={trans.__('The end of its log')} />
        </details>
      )}
      <div className="wb-Buttons">
        <button
          type="button"
          className="wb-TextButton"
          aria-label={
            hasFailed
              ? trans.__('Dismiss the start of %1', name)
              : trans.__('Cancel the start of %1', name)
          }
          onClick={() => {
            api.dismiss(start.id).catch(failed(trans.__('The start of %1', name), trans));
          }}
        >
          {hasFailed ? trans.__('Dismiss') : trans.__('Cancel')}
        </button>
      </div>
    </li>
  );
}

/** The clusters that ended in the last days; open where one has ended that its user did not stop. */
export function Ended(): React.JSX.Element | null {
  const { model, trans } = useDesk();
  const { ended } = model;
  return ended.length === 0 ? null : (
    <details className="wb-Gone" open={ended.some(its => its.state !== 'stopped')}>
      <summary>{trans.__('Ended (%1)', ended.length)}</summary>
      <ul className="wb-List" role="list" aria-label={trans.__('Clusters that have ended')}>
        {ended.map(its => (
          <Item key={its.id} ended={its} />
        ))}
      </ul>
    </details>
  );
}

function Item({ ended }: { ended: IEnded }): React.JSX.Element {
  const { trans, run, can } = useDesk();
  const now = React.useContext(Now);
  const { id, name, state, reason, when, logs } = ended;
  const words = {
    stopped: trans.__('stopped'),
    ended: trans.__('ended'),
    failed: trans.__('failed')
  };
  const mood = state === 'failed' ? 'bad' : 'ending';
  return (
    <li className="wb-Card" data-ended={name} data-state={state}>
      <div className="wb-Card-head">
        <span className={`wb-Dot wb-mod-${mood}`} aria-hidden="true" />
        <h3 title={name}>{name}</h3>
        <span className="wb-State">{words[state]}</span>
      </div>
      <p className={state === 'failed' ? 'wb-Error' : ''}>{reason}</p>
      <div className="wb-Foot">
        <time>{clock(when, now)}</time>
        {logs !== null && can(Commands.logs) && (
          <button
            type="button"
            className="wb-TextButton"
            title={logs}
            aria-label={trans.__('Logs of %1, which has ended', name)}
            onClick={() => {
              run(Commands.logs, { name, id });
            }}
          >
            {trans.__('Logs')}
          </button>
        )}
      </div>
    </li>
  );
}
