import * as React from 'react';

import type { IEnded } from '../contract';
import { Commands } from '../ids';
import { clock } from '../words';
import { Now, useDesk } from './hooks';

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
