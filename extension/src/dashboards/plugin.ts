import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';

import { dashboardIcon } from '../components';
import { isUp, meant } from '../model/permissions';
import { details, hint } from '../notify';
import { CLUSTER, Commands, IWorkbench, taking } from '../tokens';
import { DashboardTab } from './tab';
import { addressOf, withoutMoment } from './view';

/** Dashboards as tabs, which come back with the workspace and look as Lab does. */
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
        const told = trans.__(
          'Dashboards open in tabs of the browser: this server lets no page be shown in a frame, as JupyterHub does by default. Where each user has a domain of their own, the setting Content-Security-Policy in c.ServerApp.tornado_settings can allow frames; see "JupyterHub" in docs/site-setup.md.'
        );
        hint(told, details(trans.__('Dashboards'), told, trans));
      }
    };
    const theme = () => (!themes?.theme || themes.isLight(themes.theme) ? 'light' : 'dark');
    app.commands.addCommand(Commands.dashboard, {
      label: args => trans.__('Open Dashboard of Cluster %1', meant(workbench, args)?.name ?? ''),
      icon: dashboardIcon,
      describedBy: taking({
        ...CLUSTER,
        page: { type: 'string', description: 'A page of the dashboard; default: as the setting.' }
      }),
      isEnabled: args => isUp(meant(workbench, args)),
      execute: async args => {
        // a tab that comes back with the workspace may do so before its cluster is known
        const name = typeof args.name === 'string' ? args.name : meant(workbench, args)?.name;
        if (name === undefined) {
          return;
        }
        const page = typeof args.page === 'string' ? args.page : settings.dashboardPage;
        const url = api.page(name);
        const view = typeof args.view === 'string' ? args.view : `page=${page}`;
        const open = () => window.open(addressOf(url, view, theme()), '_blank') !== null;
        if (!labShell) {
          // a page of Notebook 7 holds one document
          if (!open()) {
            hint(
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
        let tab = tracker.find(its => its.cluster === name && its.page === page);
        if (!tab) {
          const showLogs = app.commands.hasCommand(Commands.logs)
            ? () => void app.commands.execute(Commands.logs, { name })
            : undefined;
          const shown = { cluster: name, page, view, url, framed, trans, showLogs };
          const added = (tab = new DashboardTab({ ...shown, theme: theme() }));
          look(tab);
          labShell.add(tab, 'main', { type: 'MPI Cluster' });
          await tracker.add(tab);
          tab.turned.connect(() => void tracker.save(added));
        }
        labShell.activateById(tab.id);
      }
    });
    // only what is known for sure is told; a cluster that is not up yet has no dashboard
    const look = (tab: DashboardTab) => {
      const cluster = model.cluster(tab.cluster);
      if (isUp(cluster) || model.hasEnded(tab.cluster)) {
        tab.hear(cluster?.id);
      } else if (cluster) {
        tab.wait();
      }
    };
    model.changed.connect(() => {
      tracker.forEach(look);
    });
    themes?.themeChanged.connect(() => {
      tracker.forEach(tab => {
        tab.theme = theme();
      });
    });
    palette?.addItem({ command: Commands.dashboard, category: trans.__('MPI Clusters') });
    void restorer?.restore(tracker, {
      command: Commands.dashboard,
      args: ({ cluster, page, view }) => ({
        name: cluster,
        page,
        view: withoutMoment(view),
        isRestored: true
      }),
      name: tab => `${tab.cluster}:${tab.page}`
    });
  }
};
