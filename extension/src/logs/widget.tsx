import type { TranslationBundle } from '@jupyterlab/translation';
import { listIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import type { ILogSource } from './contract';
import type { LogsModel } from './logsModel';
import { Viewer } from './viewer';

/** The logs of a cluster as a tab: they are read while it can be seen. */
export class LogsTab extends ReactWidget {
  constructor(
    readonly model: LogsModel,
    private readonly source: ILogSource,
    private readonly trans: TranslationBundle,
    /** The identity of the cluster, if it has ended; empty: whichever has the name. */
    readonly cluster = ''
  ) {
    super();
    this.id = `mpi-workbench-logs-${model.name}-${cluster}`;
    this.addClass('wb-Logs');
    // it is activated before it is drawn
    this.node.tabIndex = -1;
    this.title.label = trans.__('%1: logs', model.name);
    this.title.caption = trans.__('Logs of cluster %1', model.name);
    this.title.icon = listIcon;
    this.title.closable = true;
    document.addEventListener('visibilitychange', this.look);
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this.look);
    this.model.dispose();
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    const { model, trans, source } = this;
    return <Viewer model={model} trans={trans} address={source.address} />;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.look();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.look();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.look();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    (this.node.querySelector<HTMLElement>('select:enabled, .wb-Logs-text') ?? this.node).focus();
  }

  private readonly look = (): void => {
    this.model.see(this.isVisible && !document.hidden);
  };
}
