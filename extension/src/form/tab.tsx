import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { NewCluster } from './form';
import type { FormModel } from './formModel';

/** The form for a new cluster as a tab, which closes when the cluster is ready. */
export class FormTab extends MainAreaWidget<ReactWidget> {
  constructor(
    readonly model: FormModel,
    trans: TranslationBundle
  ) {
    super({ content: ReactWidget.create(<NewCluster desk={{ model, trans }} />) });
    this.id = 'mpi-workbench-new-cluster';
    this.addClass('wb-NewCluster');
    this.title.label = trans.__('New Cluster');
    this.title.icon = addIcon;
    this.toolbar.hide();
    this.content.addClass('wb-New');
    this.content.node.setAttribute('aria-label', trans.__('New cluster'));
    model.changed.connect(() => {
      if (model.isDone) {
        this.close();
      }
    });
  }

  override dispose(): void {
    this.model.dispose();
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    const { node } = this.content;
    if (document.activeElement === node) {
      node.querySelector('select')?.focus();
    }
  }
}
