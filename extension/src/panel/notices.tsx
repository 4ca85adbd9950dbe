import * as React from 'react';

import { Verbatim } from '../components';
import type { IBroken } from '../contract';
import { hindrance } from '../format';
import { Commands } from '../tokens';
import { useDesk } from './context';

/** What stands above the list when what it shows is not new, or there is nothing to show. */
export function LinkNotice(): React.JSX.Element | null {
  const { model, trans } = useDesk();
  switch (model.state) {
    case 'live':
    case 'connecting':
      return null;
    case 'missing':
      return (
        <div className="wb-Notice" role="alert">
          <p>{hindrance(model, trans)}</p>
          <p>
            {trans.__(
              'Install mpi-workbench in the environment of the server, or enable it there, and restart the server:'
            )}
          </p>
          <Verbatim
            text="jupyter server extension enable workbench.server"
            label={trans.__('Command')}
          />
          <Retry />
        </div>
      );
    case 'refused':
      return (
        <div className="wb-Notice" role="alert">
          <p>{hindrance(model, trans)}</p>
          <Retry />
        </div>
      );
    case 'reconnecting':
      return (
        <div className="wb-Notice" role="status">
          <p>{trans.__('There is no connection to the server; reconnecting…')}</p>
          {model.trouble !== '' && <p>{model.trouble}</p>}
          <Retry />
        </div>
      );
  }
}

/** What is said when the server was updated while the page stayed open. */
export function OutdatedNotice(): React.JSX.Element | null {
  const { model, trans } = useDesk();
  return model.isOutdated ? (
    <div className="wb-Notice" role="status">
      <p>
        {trans.__(
          'The server has version %1 of the workbench, and this page an earlier one.',
          model.version
        )}
      </p>
      <button
        type="button"
        className="wb-TextButton"
        onClick={() => {
          window.location.reload();
        }}
      >
        {trans.__('Reload the page')}
      </button>
    </div>
  ) : null;
}

function Retry(): React.JSX.Element {
  const { model, trans } = useDesk();
  return (
    <button
      type="button"
      className="wb-TextButton"
      onClick={() => {
        model.retry();
      }}
    >
      {trans.__('Try now')}
    </button>
  );
}

/** A record that cannot be used. */
export function BrokenRecord({ broken }: { broken: IBroken }): React.JSX.Element {
  const { trans } = useDesk();
  return (
    <li className="wb-Card" data-state="broken">
      <div className="wb-Card-head">
        <span className="wb-Dot wb-mod-bad" aria-hidden="true" />
        <h3>{broken.name || trans.__('All clusters')}</h3>
        <span className="wb-State">{trans.__('cannot be read')}</span>
      </div>
      <p className="wb-Error">{broken.error}</p>
    </li>
  );
}

/** What stands in place of an empty list. */
export function Nothing(): React.JSX.Element {
  const { model, trans, run, can } = useDesk();
  if (model.state === 'connecting') {
    return <p className="wb-Nothing">{trans.__('Looking for clusters…')}</p>;
  }
  return (
    <div className="wb-Nothing">
      <p>{trans.__('No clusters.')}</p>
      <p>
        {trans.__(
          'A cluster is an MPI world whose ranks are Dask workers. It appears here wherever it is started.'
        )}
      </p>
      <p>
        {trans.__('In a notebook:')} <code>%mpicluster start 8</code>
      </p>
      <p>
        {trans.__('In a terminal:')} <code>workbench start 8</code>
      </p>
      {can(Commands.newCluster) && (
        <button
          type="button"
          className="wb-TextButton wb-mod-accept"
          onClick={() => {
            run(Commands.newCluster);
          }}
        >
          {trans.__('New cluster…')}
        </button>
      )}
    </div>
  );
}
