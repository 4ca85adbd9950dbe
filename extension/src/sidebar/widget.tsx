import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { watchWhileSeen } from '../watching';
import type { IDesk } from './hooks';
import { Panel } from './panel';

/** The panel as a widget: pulses come while it can be seen. */
export class ClustersPanel extends ReactWidget {
  constructor(private readonly desk: IDesk) {
    super();
    this.addClass('wb-Panel');
    watchWhileSeen(this, desk.model);
  }

  protected override render(): React.JSX.Element {
    return <Panel desk={this.desk} />;
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.querySelector('button')?.focus();
  }
}
