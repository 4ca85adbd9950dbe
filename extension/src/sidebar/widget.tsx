import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Watching } from '../watching';
import type { IDesk } from './hooks';
import { Panel } from './panel';

/** The panel as a widget: pulses come while it can be seen. */
export class ClustersPanel extends ReactWidget {
  constructor(private readonly desk: IDesk) {
    super();
    this.addClass('wb-Panel');
    this.watching = new Watching(desk.model, () => this.isVisible);
  }

  override dispose(): void {
    this.watching.dispose();
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    return <Panel desk={this.desk} />;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.watching.look();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.watching.look();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.watching.look();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.querySelector('button')?.focus();
  }

  private readonly watching: Watching;
}
