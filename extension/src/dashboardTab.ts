import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  IFrame,
  launchIcon,
  refreshIcon,
  ToolbarButton,
  type ReactWidget
} from '@jupyterlab/ui-components';

import { endedNote } from './endedNote';
import { Shown } from './model/shown';
import { dashboardIcon } from './sidebar/icons';

/** What a tab shows. */
export interface IShown {
  cluster: string;
  page: string;
  /** Of the dashboard, without a query. */
  url: string;
  theme: 'light' | 'dark';
  trans: TranslationBundle;
  /** Show the logs of the cluster; undefined: nothing does. */
  showLogs: (() => void) | undefined;
}

/** Return the address of a page of a dashboard. */
export function addressOf(url: string, page: string, theme: IShown['theme']): string {
  return `${url}?${new URLSearchParams({ page, theme }).toString()}`;
}

/** The dashboard of a cluster in a tab. */
export class DashboardTab extends MainAreaWidget<IFrame> {
  constructor(private readonly shown: IShown) {
    // The pages are of this server's own origin, and need its cookies; they are not to replace Lab.
    super({
      content: new IFrame({
        sandbox: [
          'allow-scripts',
          'allow-same-origin',
          'allow-downloads',
          'allow-forms',
          'allow-modals',
          'allow-popups'
        ],
        referrerPolicy: 'same-origin',
        loading: 'lazy'
      })
    });
    const { cluster, page, trans, showLogs } = shown;
    this.note = endedNote({
      cluster,
      trans,
      showLogs,
      close: () => {
        this.close();
      }
    });
    this.id = `workbench-dashboard-${cluster}-${page}`;
    this.addClass('wb-DashboardTab');
    this.title.label = cluster;
    this.title.caption = trans.__('Dashboard of cluster %1', cluster);
    this.title.icon = dashboardIcon;
    this.title.closable = true;
    this.content.node.querySelector('iframe')?.setAttribute('title', this.title.caption);
    this.toolbar.addItem(
      'reload',
      new ToolbarButton({
        icon: refreshIcon,
        tooltip: trans.__('Reload the dashboard'),
        onClick: () => {
          this.load();
        }
      })
    );
    this.toolbar.addItem(
      'open',
      new ToolbarButton({
        icon: launchIcon,
        tooltip: trans.__('Open the dashboard in a tab of the browser'),
        onClick: () => {
          window.open(this.address, '_blank');
        }
      })
    );
    this.contentHeader.addWidget(this.note);
    this.note.hide();
    this.load();
  }

  get cluster(): string {
    return this.shown.cluster;
  }

  get page(): string {
    return this.shown.page;
  }

  /** Hear which cluster has the name now, by its identity; another one than before loads the pages again. */
  hear(id: string | undefined): void {
    if (this.which.hear(id)) {
      this.load();
    }
    const { isOver, wasThere } = this.which;
    this.note.setHidden(!isOver);
    // the last that a dashboard has shown is of use; that there is none has been said
    this.toggleClass('wb-mod-blank', isOver && !wasThere);
  }

  /** Hear that the cluster has no dashboard yet. */
  wait(): void {
    this.which.wait();
  }

  /** The look of the pages; another one loads them again, unless the cluster has ended. */
  set theme(theme: 'light' | 'dark') {
    if (theme !== this.shown.theme) {
      this.shown.theme = theme;
      if (!this.which.isOver) {
        this.load();
      }
    }
  }

  private get address(): string {
    const { url, page, theme } = this.shown;
    return addressOf(url, page, theme);
  }

  private readonly which = new Shown();
  private readonly note: ReactWidget;

  private load(): void {
    // the same address again loads the page again
    this.content.url = this.address;
  }
}
