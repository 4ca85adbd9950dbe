import { type ISignal, Signal } from '@lumino/signaling';

import type { ClustersModel } from './clusters';

/** The settings as JupyterLab stores them. */
export interface IStoredSettings {
  readonly composite: object;
  readonly changed: ISignal<unknown, unknown>;
}

/** The current settings of the user. */
export class Settings {
  /** Whether there are notifications about clusters. */
  readonly notifications: boolean = true;
  /** Minutes before the end of a job at which one is warned. */
  readonly warnMinutes: number = 10;
  /** The page that a dashboard is opened at. */
  readonly dashboardPage: string = 'overview';

  /** Emitted when a setting has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Load the stored settings, now and whenever they change. */
  load(stored: IStoredSettings): void {
    const update = () => {
      Object.assign(this, stored.composite);
      this._changed.emit();
    };
    stored.changed.connect(update);
    update();
  }

  private readonly _changed = new Signal<this, void>(this);
}

/** A store that outlives the page. */
export interface IStateStore {
  fetch: (key: string) => Promise<unknown>;
  save: (key: string, value: string) => Promise<unknown>;
}

const KEY = 'mpi-workbench:chosen';

/** Select the cluster that was selected at the last visit, and store each later selection. */
export async function persistSelection(model: ClustersModel, store: IStateStore): Promise<void> {
  let saved: unknown;
  try {
    saved = await store.fetch(KEY);
  } catch {
    // then the newest cluster is selected
  }
  if (typeof saved === 'string' && model.selectedName === '') {
    model.select(saved);
  }
  const save = () => {
    if (model.selectedName !== '' && model.selectedName !== saved) {
      saved = model.selectedName;
      // without a store the user selects a cluster again
      store.save(KEY, model.selectedName).catch(() => undefined);
    }
  };
  model.changed.connect(save);
  save();
}
