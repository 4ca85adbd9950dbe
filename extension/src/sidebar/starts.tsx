import * as React from 'react';

import type { IStart } from '../contract';
import { failed } from '../telling';
import { Verbatim } from '../verbatim';
import { duration } from '../words';
import { Now, useDesk } from './hooks';

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
