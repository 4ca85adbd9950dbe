import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';

import { dashboardIcon } from '../components';
import { isUp, resolveCluster } from '../model/permissions';
import { detailsActions, notifyInfo } from '../notify';
import { CLUSTER_ARGS, CommandIDs, describeArgs, IWorkbench } from '../tokens';
import { DashboardTab } from './tab';
import { viewUrl, withoutTime } from './view';

/** Dashboards as tabs, which are restored with the workspace and have the theme of JupyterLab. */
export const dashboardsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:dashboards',
  description: 'The dashboards of clusters, as tabs.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, IThemeManager],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    themes: IThemeManager | null
  ) => {
    const { api, model, settings, trans } = workbench;
    const tracker = new WidgetTracker<DashboardTab>({ namespace: 'mpi-workbench-dashboards' });
    const framed = PageConfig.getOption('workbenchFramed') !== 'false';
    let isExplained = false;
    const explainOnce = () => {
      if (!isExplained) {
        isExplained = true;
        const message = trans.__(
          'Dashboards open in tabs of the browser: this server does not allow pages in frames, like JupyterHub by default. Where each user has a separate domain, the setting Content-Security-Policy in c.ServerApp.tornado_settings can allow frames; see "JupyterHub" in docs/site-setup.md.'
        );
        notifyInfo(message, detailsActions(trans.__('Dashboards'), message, trans));
      }
    };
    const theme = () => (!themes?.theme || themes.isLight(themes.theme) ? 'light' : 'dark');
    app.commands.addCommand(CommandIDs.dashboard, {
      label: args =>
        trans.__('Open Dashboard of Cluster %1', resolveCluster(workbench, args)?.name ?? ''),
      icon: dashboardIcon,
      describedBy: describeArgs({
        ...CLUSTER_ARGS,
        page: { type: 'string', description: 'A page of the dashboard; default: as the setting.' }
      }),
      isEnabled: args => isUp(resolveCluster(workbench, args)),
      execute: async args => {
        // a tab may be restored before its cluster is known
        const name =
          typeof args.name === 'string' ? args.name : resolveCluster(workbench, args)?.name;
        if (name === undefined) {
          return;
        }
        const page = typeof args.page === 'string' ? args.page : settings.dashboardPage;
        const url = api.dashboardUrl(name);
        const view = typeof args.view === 'string' ? args.view : `page=${page}`;
        const open = () => window.open(viewUrl(url, view, theme()), '_blank') !== null;
        if (!labShell) {
          // a page of Notebook 7 holds one document
          if (!open()) {
            notifyInfo(
              trans.__('The browser has blocked the dashboard: allow pop-ups for this address.')
            );
          }
          return;
        }
        // A tab that is restored opens no other. Where the browser blocks the other one, the tab has a link.
        if (!framed && args.isRestored !== true && open()) {
          explainOnce();
          return;
        }
        let tab = tracker.find(tab => tab.cluster === name && tab.page === page);
        if (!tab) {
          const showLogs = app.commands.hasCommand(CommandIDs.logs)
            ? () => void app.commands.execute(CommandIDs.logs, { name })
            : undefined;
          const options = { cluster: name, page, view, url, framed, trans, showLogs };
          const newTab = (tab = new DashboardTab({ ...options, theme: theme() }));
          updateTab(tab);
          labShell.add(tab, 'main', { type: 'MPI Cluster' });
          await tracker.add(tab);
          tab.viewChanged.connect(() => void tracker.save(newTab));
        }
        labShell.activateById(tab.id);
      }
    });
    // only what is certain is shown; a cluster that is not up yet has no dashboard
    const updateTab = (tab: DashboardTab) => {
      const cluster = model.cluster(tab.cluster);
      if (isUp(cluster) || model.hasEnded(tab.cluster)) {
        tab.updateCluster(cluster?.id);
      } else if (cluster) {
        tab.markPending();
      }
    };
    model.changed.connect(() => {
      tracker.forEach(updateTab);
    });
    themes?.themeChanged.connect(() => {
      tracker.forEach(tab => {
        tab.theme = theme();
      });
    });
    palette?.addItem({ command: CommandIDs.dashboard, category: trans.__('MPI Clusters') });
    void restorer?.restore(tracker, {
      command: CommandIDs.dashboard,
      args: ({ cluster, page, view }) => ({
        name: cluster,
        page,
        view: withoutTime(view),
        isRestored: true
      }),
      name: tab => `${tab.cluster}:${tab.page}`
    });
  }
};
