import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';

import { meant } from './commands';
import { addressOf, DashboardTab } from './dashboardTab';
import { Commands } from './ids';
import { isUp } from './model/allowed';
import { dashboardIcon } from './sidebar/icons';
import { IWorkbench } from './tokens';

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
    const tracker = new WidgetTracker<DashboardTab>({ namespace: 'workbench-dashboards' });
    const theme = () => (!themes?.theme || themes.isLight(themes.theme) ? 'light' : 'dark');
    app.commands.addCommand(Commands.dashboard, {
      label: trans.__('Open Dashboard of Cluster'),
      icon: dashboardIcon,
      isEnabled: args => isUp(meant(workbench, args)),
      execute: async args => {
        // a tab that comes back with the workspace may do so before its cluster is known
        const name = typeof args.name === 'string' ? args.name : meant(workbench, args)?.name;
        if (name === undefined) {
          return;
        }
        const page = typeof args.page === 'string' ? args.page : settings.dashboardPage;
        const url = api.page('dashboard', name);
        if (!labShell || !(await api.mayFrame())) {
          // a page of Notebook 7 holds one document
          window.open(addressOf(url, page, theme()), '_blank');
          return;
        }
        const id = model.cluster(name)?.id;
        let tab = tracker.find(its => its.cluster === name && its.page === page);
        if (!tab) {
          tab = new DashboardTab({ cluster: name, id, page, url, theme: theme(), trans });
          labShell.add(tab, 'main', { type: 'MPI Cluster' });
          await tracker.add(tab);
        }
        tab.of = id;
        labShell.activateById(tab.id);
      }
    });
    themes?.themeChanged.connect(() => {
      tracker.forEach(tab => {
        tab.theme = theme();
      });
    });
    palette?.addItem({ command: Commands.dashboard, category: trans.__('MPI Clusters') });
    void restorer?.restore(tracker, {
      command: Commands.dashboard,
      args: tab => ({ name: tab.cluster, page: tab.page }),
      name: tab => `${tab.cluster}:${tab.page}`
    });
  }
};
