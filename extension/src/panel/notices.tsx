import * as React from 'react';

import { Preformatted } from '../components';
import type { IBrokenRecord } from '../contract';
import { unavailableReason } from '../format';
import { CommandIDs } from '../tokens';
import { usePanel } from './context';

/** The notice above the list while the list is not current. */
export function ConnectionNotice(): React.JSX.Element | null {
  const { model, trans } = usePanel();
  switch (model.connectionState) {
    case 'live':
    case 'connecting':
      return null;
    case 'missing':
      return (
        <div className="wb-Notice" role="alert">
          <p>{unavailableReason(model, trans)}</p>
          <p>
            {trans.__(
              'Install mpi-workbench in the environment of the server, or enable it there, and restart the server:'
            )}
          </p>
          <Preformatted
            text="jupyter server extension enable workbench.server"
            label={trans.__('Command')}
          />
          <RetryButton />
        </div>
      );
    case 'refused':
      return (
        <div className="wb-Notice" role="alert">
          <p>{unavailableReason(model, trans)}</p>
          <RetryButton />
        </div>
      );
    case 'reconnecting':
      return (
        <div className="wb-Notice" role="status">
          <p>{trans.__('There is no connection to the server; reconnecting…')}</p>
          {model.connectionError !== '' && <p>{model.connectionError}</p>}
          <RetryButton />
        </div>
      );
  }
}

/** The notice after an update of the server while the page was open. */
export function OutdatedNotice(): React.JSX.Element | null {
  const { model, trans } = usePanel();
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

function RetryButton(): React.JSX.Element {
  const { model, trans } = usePanel();
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
export function BrokenRecord({ broken }: { broken: IBrokenRecord }): React.JSX.Element {
  const { trans } = usePanel();
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

/** What the panel shows in place of an empty list. */
export function EmptyList(): React.JSX.Element {
  const { model, trans, commands } = usePanel();
  if (model.connectionState === 'connecting') {
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
      {commands.hasCommand(CommandIDs.newCluster) && (
        <button
          type="button"
          className="wb-TextButton wb-mod-accept"
          onClick={() => {
            void commands.execute(CommandIDs.newCluster);
          }}
        >
          {trans.__('New cluster…')}
        </button>
      )}
    </div>
  );
}
