import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IStateDB } from '@jupyterlab/statedb';
import type { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { unavailableReason } from '../format';
import type { ClustersModel } from '../model/clusters';
import { CommandIDs, describeArgs, IWorkbench } from '../tokens';
import { observeVisibility } from '../visibility';
import { NewClusterForm } from './form';
import { FormModel } from './formModel';

// The key of the remembered values.
const KEY = 'mpi-workbench:new-cluster';

/** The form for a new cluster, as a tab, which is restored with the workspace. */
export const formPlugin: JupyterFrontEndPlugin<void> = {
  id: 'mpi-workbench:form',
  description: 'The form for a new cluster, as a tab.',
  autoStart: true,
  requires: [IWorkbench],
  optional: [ILabShell, ILayoutRestorer, IStateDB, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    workbench: IWorkbench,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    stateDB: IStateDB | null,
    palette: ICommandPalette | null
  ) => {
    if (PageConfig.getOption('workbenchStarts') === 'false') {
      return; // this site does not let the server start clusters
    }
    const { api, model, trans } = workbench;
    const tracker = new WidgetTracker<FormTab>({ namespace: 'mpi-workbench-new-cluster' });
    app.commands.addCommand(CommandIDs.newCluster, {
      label: args => (args.isMenu ? trans.__('MPI Cluster…') : trans.__('New Cluster…')),
      icon: args => (args.isPalette ? undefined : addIcon),
      describedBy: describeArgs({
        isMenu: { type: 'boolean', description: 'Whether the label is for a menu of new items.' },
        isPalette: { type: 'boolean', description: 'Whether it stands in the command palette.' },
        start: { type: 'string', description: 'A start that was asked for in this tab before.' }
      }),
      isEnabled: () => unavailableReason(model, trans) === '',
      execute: async args => {
        let tab = tracker.find(tab => tab.model.startId === '');
        if (!tab) {
          // a form whose start is under way: the start goes on, and the panel shows it
          tracker.forEach(other => {
            other.close();
          });
          const form = new FormModel(api, model);
          const newTab = (tab = new FormTab(form, model, trans));
          if (typeof args.start === 'string' && args.start !== '') {
            form.trackStart(args.start, true);
          }
          void loadValues(stateDB).then(values => form.load(values));
          // a page of Notebook 7 holds one document
          app.shell.add(tab, labShell ? 'main' : 'down', { type: 'MPI Cluster' });
          await tracker.add(tab);
          form.changed.connect(() => {
            void tracker.save(newTab);
            if (form.form) {
              // without a store the user fills in the form again
              stateDB?.save(KEY, { ...form.values }).catch(() => undefined);
            }
          });
        }
        app.shell.activateById(tab.id);
      }
    });
    palette?.addItem({
      command: CommandIDs.newCluster,
      category: trans.__('MPI Clusters'),
      args: { isPalette: true }
    });
    void restorer?.restore(tracker, {
      command: CommandIDs.newCluster,
      args: ({ model: { startId } }) => ({ start: startId }),
      name: () => 'form'
    });
  }
};

async function loadValues(memory: IStateDB | null): Promise<unknown> {
  try {
    return await memory?.fetch(KEY);
  } catch {
    return undefined;
  }
}

/** The form for a new cluster as a tab, which closes when the cluster is ready. */
export class FormTab extends MainAreaWidget<ReactWidget> {
  constructor(
    readonly model: FormModel,
    private readonly clusters: ClustersModel,
    trans: TranslationBundle
  ) {
    super({ content: ReactWidget.create(<NewClusterForm context={{ model, trans }} />) });
    this.id = 'mpi-workbench-new-cluster';
    this.addClass('wb-NewCluster');
    this.title.label = trans.__('New Cluster');
    this.title.icon = addIcon;
    this.toolbar.hide();
    this.content.addClass('wb-New');
    this.content.node.setAttribute('aria-label', trans.__('New cluster'));
    model.changed.connect(() => {
      if (model.isComplete) {
        this.close();
      }
    });
    observeVisibility(this.content, isVisible => {
      this.trackVisible(isVisible);
    });
  }

  override dispose(): void {
    this.trackVisible(false);
    this.model.dispose();
    super.dispose();
  }

  private trackVisible(isVisible: boolean): void {
    if (isVisible) {
      this.clusters.visibleForm = this.model;
    } else if (this.clusters.visibleForm === this.model) {
      this.clusters.visibleForm = null;
    }
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    const { node } = this.content;
    if (document.activeElement === node) {
      node.querySelector('select')?.focus();
    }
  }
}
