import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';

import { formatDuration } from '../format';
import { detailsActions } from '../notify';
import { CommandIDs, IWorkbench } from '../tokens';
import { ClusterEventDetector, type IClusterEvent } from './clusterEvents';
import { trackLastSeenPage } from './lastSeenPage';

// Seconds between two checks whether a job is about to end.
const CHECK_INTERVAL = 20;
// The number of simultaneous events that have a notification each.
const MAX_SINGLE = 3;

/** Notifications about clusters. */
export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:notifications',
  description:
    'Notifications of clusters that are ready, fail, lose ranks, are about to end or have ended.',
  autoStart: true,
  requires: [IWorkbench],
  activate: (app: JupyterFrontEnd, workbench: IWorkbench) => {
    const { api, model, settings } = workbench;
    const detector = new ClusterEventDetector();
    // each tab of the browser detects all events, and each notebook of Notebook 7 is a tab
    const isLastSeenPage = trackLastSeenPage(
      `mpi-workbench:news:${api.settings.baseUrl}`,
      navigator.locks
    );
    const update = () => {
      // before the first state of the server nothing is known
      if (model.version !== '') {
        const { clusters, starts, ended, visibleForm } = model;
        const warn = 60 * settings.warnMinutes;
        const now = model.now();
        const events = detector.detect(clusters, starts, now, warn, ended, visibleForm?.startId);
        if (settings.notifications && isLastSeenPage()) {
          notifyAll(events, app, workbench);
        }
      }
    };
    model.changed.connect(update);
    settings.changed.connect(update);
    setInterval(update, CHECK_INTERVAL * 1000);
  }
};

function notifyAll(events: IClusterEvent[], app: JupyterFrontEnd, workbench: IWorkbench): void {
  if (events.length <= MAX_SINGLE) {
    events.forEach(event => {
      notify(event, app, workbench);
    });
    return;
  }
  const { trans } = workbench;
  const about = new Set(events.map(event => (event.cluster ?? event.start ?? event.ended)?.id));
  Notification.info(trans._n('%1 cluster changed state', '%1 clusters changed state', about.size), {
    autoClose: false,
    actions: [
      { label: trans.__('Show'), callback: () => void app.commands.execute(CommandIDs.show) }
    ]
  });
}

function notify(
  { kind, name, cluster, start, ended }: IClusterEvent,
  app: JupyterFrontEnd,
  workbench: IWorkbench
): void {
  const { model, trans } = workbench;
  const displayName = name || trans.__('new cluster');
  const message = cluster?.message ?? start?.message ?? '';
  const action = (label: string, command: string, args = {}) => ({
    label,
    callback: () => void app.commands.execute(command, { name, ...args })
  });
  // another cluster may have the name by the time the user reads this
  const endedId = (kind === 'failed' ? cluster : ended)?.id;
  const hasLogs = name !== '' && ended?.logs !== null && app.commands.hasCommand(CommandIDs.logs);
  const logsActions = hasLogs
    ? [action(trans.__('Logs'), CommandIDs.logs, endedId ? { id: endedId } : {})]
    : [];
  const notifyFailure = (title: string, text: string, log?: string) =>
    Notification.error(text, {
      autoClose: false,
      actions: [...detailsActions(title, text, trans, log), ...logsActions]
    });
  switch (kind) {
    case 'ready':
      Notification.success(
        trans._n(
          'Cluster %2 is ready: %1 rank',
          'Cluster %2 is ready: %1 ranks',
          cluster?.up ?? 0,
          name
        ),
        { autoClose: 10000, actions: [action(trans.__('Dashboard'), CommandIDs.dashboard)] }
      );
      break;
    case 'ends': {
      const left = formatDuration((cluster?.ends ?? 0) - model.now(), trans);
      Notification.warning(trans.__('The job of cluster %1 ends in %2', name, left), {
        autoClose: false
      });
      break;
    }
    case 'lost': {
      const text = trans.__('Cluster %1 has lost ranks: %2', name, message);
      Notification.warning(text, {
        autoClose: false,
        actions: [
          ...detailsActions(name, text, trans),
          ...logsActions,
          action(trans.__('Show'), CommandIDs.show)
        ]
      });
      break;
    }
    case 'failed':
      notifyFailure(name, trans.__('Cluster %1 has failed: %2', name, message));
      break;
    case 'ended': {
      const text = trans.__('Cluster %1 has ended: %2', name, ended?.reason ?? '');
      if (ended?.state === 'failed') {
        notifyFailure(name, text);
      } else {
        Notification.warning(text, {
          autoClose: false,
          actions: [...detailsActions(name, text, trans), ...logsActions]
        });
      }
      break;
    }
    case 'error':
      notifyFailure(name, `${name}: ${cluster?.error ?? ''}`);
      break;
    case 'start-failed':
      notifyFailure(
        trans.__('The start of %1', displayName),
        trans.__('The start of %1 has failed: %2', displayName, message),
        start?.log
      );
      break;
  }
}
