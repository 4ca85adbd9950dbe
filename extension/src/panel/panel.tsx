import { addIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Icon, Preformatted, useClock, useSignal } from '../components';
import type { IBrokenRecord, IEnded, IStart } from '../contract';
import { formatDuration, formatTime, unavailableReason } from '../format';
import { notifyError } from '../notify';
import { CommandIDs } from '../tokens';
import { ClusterCard } from './card';
import { type IPanelContext, NowContext, PanelContext, usePanel } from './context';
import { useAnnouncement } from './liveRegion';

/** The panel of clusters. */
export function Panel({ context }: { context: IPanelContext }): React.JSX.Element {
  const now = useClock(React.useCallback(() => context.model.now(), [context]));
  return (
    <PanelContext.Provider value={context}>
      <NowContext.Provider value={now}>
        <Header />
        <ClusterList />
      </NowContext.Provider>
    </PanelContext.Provider>
  );
}

function Header(): React.JSX.Element {
  const { model, trans, commands } = usePanel();
  useSignal(model.changed);
  const reason = unavailableReason(model, trans);
  return (
    <div className="wb-Head">
      <h2>{trans.__('MPI Clusters')}</h2>
      {commands.hasCommand(CommandIDs.newCluster) && (
        <button
          type="button"
          className="wb-Button"
          title={reason || trans.__('New cluster…')}
          aria-label={trans.__('New cluster')}
          disabled={reason !== ''}
          onClick={() => {
            void commands.execute(CommandIDs.newCluster);
          }}
        >
          <Icon icon={addIcon} />
        </button>
      )}
    </div>
  );
}

function ClusterList(): React.JSX.Element {
  const { model, trans } = usePanel();
  useSignal(model.changed);
  const { clusters, broken, starts, connectionState } = model;
  // a start whose cluster exists is shown by its card
  const pendingStarts = starts.filter(
    start => start.state === 'failed' || start.name === null || !model.cluster(start.name)
  );
  const isEmpty = clusters.length + broken.length + pendingStarts.length === 0;
  const isKnown = connectionState === 'live' || connectionState === 'connecting';
  return (
    <div className="wb-Body" aria-busy={connectionState === 'connecting'}>
      <ConnectionNotice />
      <OutdatedNotice />
      {isEmpty && isKnown && <EmptyList />}
      {!isEmpty && (
        <ul
          className={`wb-List${isKnown ? '' : ' wb-mod-old'}`}
          role="list"
          aria-label={trans.__('MPI clusters')}
        >
          {pendingStarts.map(start => (
            <StartItem key={start.id} start={start} />
          ))}
          {clusters.map(cluster => (
            <ClusterCard
              key={cluster.id}
              cluster={cluster}
              isSelected={cluster === model.selected}
            />
          ))}
          {broken.map(record => (
            <BrokenRecord key={record.name} broken={record} />
          ))}
        </ul>
      )}
      <EndedSection />
      <p className="wb-Spoken" aria-live="polite">
        {useAnnouncement(model, trans)}
      </p>
    </div>
  );
}

/** A start that is under way, or has failed. */
export function StartItem({ start }: { start: IStart }): React.JSX.Element {
  const { api, trans } = usePanel();
  const now = React.useContext(NowContext);
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
            : trans.__('starting for %1', formatDuration(now - start.since, trans))}
        </span>
      </div>
      {start.message !== '' && <p className={hasFailed ? 'wb-Error' : ''}>{start.message}</p>}
      {hasFailed && start.log !== '' && (
        <details>
          <summary>{trans.__('The end of its log')}</summary>
          <Preformatted text={start.log} label={trans.__('The end of its log')} />
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
            api.dismiss(start.id).catch(notifyError(trans.__('The start of %1', name), trans));
          }}
        >
          {hasFailed ? trans.__('Dismiss') : trans.__('Cancel')}
        </button>
      </div>
    </li>
  );
}

/** The clusters that ended in the last days; open where one has ended that its user did not stop. */
export function EndedSection(): React.JSX.Element | null {
  const { model, trans } = usePanel();
  const { ended } = model;
  return ended.length === 0 ? null : (
    <details className="wb-Gone" open={ended.some(cluster => cluster.state !== 'stopped')}>
      <summary>{trans.__('Ended (%1)', ended.length)}</summary>
      <ul className="wb-List" role="list" aria-label={trans.__('Clusters that have ended')}>
        {ended.map(cluster => (
          <EndedItem key={cluster.id} ended={cluster} />
        ))}
      </ul>
    </details>
  );
}

function EndedItem({ ended }: { ended: IEnded }): React.JSX.Element {
  const { trans, commands } = usePanel();
  const now = React.useContext(NowContext);
  const { id, name, state, reason, when, logs } = ended;
  const labels = {
    stopped: trans.__('stopped'),
    ended: trans.__('ended'),
    failed: trans.__('failed')
  };
  const category = state === 'failed' ? 'bad' : 'ending';
  return (
    <li className="wb-Card" data-ended={name} data-state={state}>
      <div className="wb-Card-head">
        <span className={`wb-Dot wb-mod-${category}`} aria-hidden="true" />
        <h3 title={name}>{name}</h3>
        <span className="wb-State">{labels[state]}</span>
      </div>
      <p className={state === 'failed' ? 'wb-Error' : ''}>{reason}</p>
      <div className="wb-Foot">
        <time>{formatTime(when, now)}</time>
        {logs !== null && commands.hasCommand(CommandIDs.logs) && (
          <button
            type="button"
            className="wb-TextButton"
            title={logs}
            aria-label={trans.__('Logs of %1, which has ended', name)}
            onClick={() => {
              void commands.execute(CommandIDs.logs, { name, id });
            }}
          >
            {trans.__('Logs')}
          </button>
        )}
      </div>
    </li>
  );
}

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
            text="jupyter server extension enable workbench.lab"
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
