import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { NewCluster } from './form';
import type { FormModel } from './formModel';

const CANCEL = 0;
const START = 1;

/** Asks what cluster to start, and stays until the start needs nobody any more. */
export class NewClusterDialog extends Dialog<unknown> {
  constructor(
    private readonly model: FormModel,
    private readonly trans: TranslationBundle
  ) {
    super({
      title: trans.__('New Cluster'),
      body: ReactWidget.create(<NewCluster desk={{ model, trans }} />),
      buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Start') })],
      defaultButton: START,
      hasClose: true
    });
    this.addClass('wb-NewCluster');
    this.node.setAttribute('aria-label', trans.__('New Cluster'));
    model.changed.connect(this.refresh);
    this.refresh();
  }

  override dispose(): void {
    this.model.changed.disconnect(this.refresh);
    super.dispose();
  }

  override handleEvent(event: Event): void {
    if (event instanceof KeyboardEvent && event.key === 'Enter' && this.hasOwnUse(event.target)) {
      return;
    }
    if (event instanceof KeyboardEvent && event.key === 'Tab' && this.leaves(event)) {
      // what comes first was not there yet when the dialog looked for it
      event.preventDefault();
      event.stopPropagation();
      this.node.querySelector<HTMLElement>('.jp-Dialog-body :is(select, button)')?.focus();
      return;
    }
    if (event.type === 'focus' && event.target instanceof HTMLElement) {
      this.keepFocus(event, event.target);
      return;
    }
    super.handleEvent(event);
    if (event.type === 'input') {
      // a dialog enables its buttons whenever something is typed
      this.refresh();
    }
  }

  override resolve(index = START): void {
    if (index === START) {
      void this.start();
    } else {
      super.resolve(index);
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // Until there is a form, Start is disabled and cannot have the focus: without it no key would get here.
    this.buttons[CANCEL]?.focus();
  }

  private async start(): Promise<void> {
    if (await this.model.start()) {
      super.resolve(CANCEL);
    }
  }

  // What takes the focus late, as a panel that is only now shown, would have it behind the dialog: Start, to which
  // JupyterLab gives it then, may be disabled.
  private keepFocus(event: Event, target: HTMLElement): void {
    if (this.node.contains(target)) {
      this.focused = target;
      return;
    }
    event.stopPropagation();
    (this.focused?.isConnected ? this.focused : this.buttons[CANCEL])?.focus();
  }

  private get buttons(): HTMLButtonElement[] {
    return [...this.node.querySelectorAll<HTMLButtonElement>('.jp-Dialog-footer button')];
  }

  private leaves(event: KeyboardEvent): boolean {
    return !event.shiftKey && event.target === this.buttons.filter(its => !its.disabled).at(-1);
  }

  // Whether an element in the form does something of its own at Enter.
  private hasOwnUse(target: EventTarget | null): boolean {
    return (
      target instanceof HTMLElement &&
      target.closest('.jp-Dialog-body') !== null &&
      target.matches('button, summary, textarea')
    );
  }

  // What had the focus last.
  private focused: HTMLElement | null = null;

  private readonly refresh = (): void => {
    const [cancel, start] = this.buttons;
    const { canStart, isFollowing } = this.model;
    if (start) {
      start.disabled = !canStart;
    }
    const label = cancel?.querySelector('.jp-Dialog-buttonLabel');
    if (label) {
      label.textContent = isFollowing ? this.trans.__('Close') : this.trans.__('Cancel');
    }
  };
}
