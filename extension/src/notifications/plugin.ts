import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';

import { duration } from '../format';
import { details } from '../notify';
import { Commands, IWorkbench } from '../tokens';
import { type INews, Reporter } from './clusterEvents';
import { lastSeen } from './lastSeenPage';

// Seconds between two looks at the clock.
const LOOK = 20;
// News of one moment that are told one by one.
const FEW = 3;

/** Notifications of what somebody wants to know wherever he looks. */
export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:notifications',
  description:
    'Notifications of clusters that are ready, fail, lose ranks, are about to end or have ended.',
  autoStart: true,
  requires: [IWorkbench],
  activate: (app: JupyterFrontEnd, workbench: IWorkbench) => {
    const { api, model, settings } = workbench;
    const reporter = new Reporter();
    // each tab of the browser has all news, and each notebook of Notebook 7 is a tab
    const isLastSeen = lastSeen(`mpi-workbench:news:${api.settings.baseUrl}`, navigator.locks);
    const report = () => {
      // before the first word of the server nothing is known
      if (model.version !== '') {
        const { clusters, starts, ended } = model;
        const warn = 60 * settings.warnMinutes;
        const news = reporter.report(clusters, starts, model.now(), warn, ended);
        if (settings.notifications && isLastSeen()) {
          tellAll(news, app, workbench);
        }
      }
    };
    model.changed.connect(report);
    settings.changed.connect(report);
    setInterval(report, LOOK * 1000);
  }
};

function tellAll(news: INews[], app: JupyterFrontEnd, workbench: IWorkbench): void {
  if (news.length <= FEW) {
    news.forEach(its => {
      tell(its, app, workbench);
    });
    return;
  }
  const { trans } = workbench;
  const about = new Set(news.map(its => (its.cluster ?? its.start ?? its.ended)?.id));
  Notification.info(
    trans._n('There is news of %1 cluster', 'There is news of %1 clusters', about.size),
    {
      autoClose: false,
      actions: [
        { label: trans.__('Show'), callback: () => void app.commands.execute(Commands.show) }
      ]
    }
  );
}

function tell(
  { kind, name, cluster, start, ended }: INews,
  app: JupyterFrontEnd,
  workbench: IWorkbench
): void {
  const { model, trans } = workbench;
  const called = name || trans.__('new cluster');
  const message = cluster?.message ?? start?.message ?? '';
  const action = (label: string, command: string, args = {}) => ({
    label,
    callback: () => void app.commands.execute(command, { name, ...args })
  });
  // a cluster that is over may have given its name away when somebody reads this
  const over = (kind === 'failed' ? cluster : ended)?.id;
  const hasLogs = name !== '' && ended?.logs !== null && app.commands.hasCommand(Commands.logs);
  const logs = hasLogs ? [action(trans.__('Logs'), Commands.logs, over ? { id: over } : {})] : [];
  const wrong = (title: string, told: string, log?: string) =>
    Notification.error(told, {
      autoClose: false,
      actions: [...details(title, told, trans, log), ...logs]
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
        { autoClose: 10000, actions: [action(trans.__('Dashboard'), Commands.dashboard)] }
      );
      break;
    case 'ends': {
      const left = duration((cluster?.ends ?? 0) - model.now(), trans);
      Notification.warning(trans.__('The job of cluster %1 ends in %2', name, left), {
        autoClose: false
      });
      break;
    }
    case 'lost': {
      const told = trans.__('Cluster %1 has lost ranks: %2', name, message);
      Notification.warning(told, {
        autoClose: false,
        actions: [...details(name, told, trans), ...logs, action(trans.__('Show'), Commands.show)]
      });
      break;
    }
    case 'failed':
      wrong(name, trans.__('Cluster %1 has failed: %2', name, message));
      break;
    case 'ended': {
      const told = trans.__('Cluster %1 has ended: %2', name, ended?.reason ?? '');
      if (ended?.state === 'failed') {
        wrong(name, told);
      } else {
        Notification.warning(told, {
          autoClose: false,
          actions: [...details(name, told, trans), ...logs]
        });
      }
      break;
    }
    case 'error':
      wrong(name, `${name}: ${cluster?.error ?? ''}`);
      break;
    case 'start-failed':
      wrong(
        trans.__('The start of %1', called),
        trans.__('The start of %1 has failed: %2', called, message),
        start?.log
      );
      break;
  }
}
