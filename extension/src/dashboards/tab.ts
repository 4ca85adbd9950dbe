import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  IFrame,
  launchIcon,
  type ReactWidget,
  refreshIcon,
  ToolbarButton
} from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { type ISignal, Signal } from '@lumino/signaling';

import { createBanner, dashboardIcon } from '../components';
import { ClusterIdentity } from '../model/clusterIdentity';
import { viewTitle, viewUrl, withoutTime } from './view';

/** The options of a dashboard tab. */
export interface IDashboardOptions {
  cluster: string;
  /** The page that it was opened at. */
  page: string;
  /** The view, as the query of an address: the page that is shown, and what was chosen on it. */
  view: string;
  /** Of the dashboard, without a query. */
  url: string;
  theme: 'light' | 'dark';
  /** Whether the server lets the dashboard be shown in a frame; otherwise the tab has a link to it. */
  framed: boolean;
  trans: TranslationBundle;
  /** Show the logs of the cluster; undefined: nothing does. */
  showLogs: (() => void) | undefined;
}

/** The dashboard of a cluster in a tab. */
export class DashboardTab extends MainAreaWidget<IFrame> {
  constructor(private readonly options: IDashboardOptions) {
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
    const { cluster, page, framed, trans, showLogs } = options;
    const open = {
      label: trans.__('Open the dashboard in a tab of the browser'),
      run: () => {
        window.open(this.viewUrl, '_blank');
      }
    };
    const close = {
      label: trans.__('Close this tab'),
      run: () => {
        this.close();
      }
    };
    this.endedBanner = createBanner(trans.__('Cluster %1 has ended.', cluster), [
      ...(showLogs ? [{ label: trans.__('Show its logs'), run: showLogs }] : []),
      close
    ]);
    this.id = `mpi-workbench-dashboard-${cluster}-${page}`;
    this.addClass('wb-DashboardTab');
    this.title.caption = trans.__('Dashboard of cluster %1', cluster);
    this.title.icon = dashboardIcon;
    this.title.closable = true;
    this.frame?.setAttribute('title', this.title.caption);
    this.frame?.addEventListener('load', this.onFrameLoad);
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
        tooltip: open.label,
        onClick: open.run
      })
    );
    this.contentHeader.addWidget(this.endedBanner);
    this.endedBanner.hide();
    if (!framed) {
      this.addClass('wb-mod-blank');
      this.contentHeader.addWidget(
        createBanner(trans.__('This server does not allow pages in frames.'), [open])
      );
    }
    this.updateView();
  }

  /** Emitted when the view has changed. */
  get viewChanged(): ISignal<this, void> {
    return this._viewChanged;
  }

  get cluster(): string {
    return this.options.cluster;
  }

  get page(): string {
    return this.options.page;
  }

  /** The view, as the query of an address; the last one that was read where the frame shows no dashboard. */
  get view(): string {
    try {
      const { origin, pathname, search } = this.frame?.contentWindow?.location ?? location;
      if (origin + pathname === new URL(this.options.url, document.baseURI).href) {
        this.options.view = search;
      }
    } catch {
      // the error page of a browser is of another origin
    }
    return this.options.view;
  }

  /** Set which cluster has the name now, by its identity; another one than before loads the dashboard again. */
  updateCluster(id: string | undefined): void {
    if (this.identity.update(id)) {
      this.load(withoutTime(this.view));
    }
    const { hasEnded, isKnown } = this.identity;
    this.endedBanner.setHidden(!hasEnded);
    // the last state of a dashboard is of use; an empty frame is not
    this.toggleClass('wb-mod-blank', !this.options.framed || (hasEnded && !isKnown));
  }

  /** Mark that the cluster has no dashboard yet. */
  markPending(): void {
    this.identity.markPending();
  }

  /** The theme of the dashboard; another one loads the dashboard again, unless the cluster has ended. */
  set theme(theme: 'light' | 'dark') {
    if (theme !== this.options.theme) {
      this.options.theme = theme;
      if (!this.identity.hasEnded) {
        this.load();
      }
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // a frame that is moved loads its first address again
    this.load();
  }

  protected override onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this.updateView();
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this.updateView();
  }

  private get frame(): HTMLIFrameElement | null {
    return this.content.node.querySelector('iframe');
  }

  private get viewUrl(): string {
    return this.urlOf(this.view);
  }

  private urlOf(view: string): string {
    return viewUrl(this.options.url, view, this.options.theme);
  }

  private readonly onFrameLoad = (): void => {
    this.updateView();
    // A page is turned without a load. A browser without this event: the view is read when the tab is hidden.
    const frameWindow = this.frame?.contentWindow as
      { navigation?: EventTarget } | null | undefined;
    frameWindow?.navigation?.addEventListener('currententrychange', this.updateView);
  };

  private readonly updateView = (): void => {
    const { view } = this;
    if (view !== this.lastView) {
      this.lastView = view;
      this.title.label = `${this.cluster} · ${viewTitle(view)}`;
      this._viewChanged.emit();
    }
  };

  private load(view = this.view): void {
    if (this.options.framed) {
      // the same address again loads the page again
      this.content.url = this.urlOf(view);
    }
  }

  private readonly identity = new ClusterIdentity();
  private readonly endedBanner: ReactWidget;
  private lastView = '';
  private readonly _viewChanged = new Signal<this, void>(this);
}
