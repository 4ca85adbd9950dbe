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

import { dashboardIcon, tabNote } from '../components';
import { Shown } from '../model/clusterIdentity';
import { addressOf, titleOf, withoutMoment } from './view';

/** What a tab shows. */
export interface IShown {
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
    const { cluster, page, framed, trans, showLogs } = shown;
    const open = {
      label: trans.__('Open the dashboard in a tab of the browser'),
      run: () => {
        window.open(this.address, '_blank');
      }
    };
    const close = {
      label: trans.__('Close this tab'),
      run: () => {
        this.close();
      }
    };
    this.note = tabNote(trans.__('Cluster %1 has ended.', cluster), [
      ...(showLogs ? [{ label: trans.__('Show its logs'), run: showLogs }] : []),
      close
    ]);
    this.id = `mpi-workbench-dashboard-${cluster}-${page}`;
    this.addClass('wb-DashboardTab');
    this.title.caption = trans.__('Dashboard of cluster %1', cluster);
    this.title.icon = dashboardIcon;
    this.title.closable = true;
    this.frame?.setAttribute('title', this.title.caption);
    this.frame?.addEventListener('load', this.listen);
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
    this.contentHeader.addWidget(this.note);
    this.note.hide();
    if (!framed) {
      this.addClass('wb-mod-blank');
      this.contentHeader.addWidget(
        tabNote(trans.__('This server lets no page be shown in a frame.'), [open])
      );
    }
    this.look();
  }

  /** Emitted when the view has changed. */
  get turned(): ISignal<this, void> {
    return this._turned;
  }

  get cluster(): string {
    return this.shown.cluster;
  }

  get page(): string {
    return this.shown.page;
  }

  /** The view, as the query of an address; the last one that was read where the frame shows no dashboard. */
  get view(): string {
    try {
      const { origin, pathname, search } = this.frame?.contentWindow?.location ?? location;
      if (origin + pathname === new URL(this.shown.url, document.baseURI).href) {
        this.shown.view = search;
      }
    } catch {
      // the error page of a browser is of another origin
    }
    return this.shown.view;
  }

  /** Hear which cluster has the name now, by its identity; another one than before loads the pages again. */
  hear(id: string | undefined): void {
    if (this.which.hear(id)) {
      this.load(withoutMoment(this.view));
    }
    const { isOver, wasThere } = this.which;
    this.note.setHidden(!isOver);
    // the last that a dashboard has shown is of use; that there is none has been said
    this.toggleClass('wb-mod-blank', !this.shown.framed || (isOver && !wasThere));
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

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // a frame that is moved loads its first address again
    this.load();
  }

  protected override onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this.look();
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this.look();
  }

  private get frame(): HTMLIFrameElement | null {
    return this.content.node.querySelector('iframe');
  }

  private get address(): string {
    return this.addressOf(this.view);
  }

  private addressOf(view: string): string {
    return addressOf(this.shown.url, view, this.shown.theme);
  }

  private readonly listen = (): void => {
    this.look();
    // A page is turned without a load. A browser without this event: the view is read when the tab is hidden.
    const inside = this.frame?.contentWindow as { navigation?: EventTarget } | null | undefined;
    inside?.navigation?.addEventListener('currententrychange', this.look);
  };

  private readonly look = (): void => {
    const { view } = this;
    if (view !== this.seen) {
      this.seen = view;
      this.title.label = `${this.cluster} · ${titleOf(view)}`;
      this._turned.emit();
    }
  };

  private load(view = this.view): void {
    if (this.shown.framed) {
      // the same address again loads the page again
      this.content.url = this.addressOf(view);
    }
  }

  private readonly which = new Shown();
  private readonly note: ReactWidget;
  private seen = '';
  private readonly _turned = new Signal<this, void>(this);
}
