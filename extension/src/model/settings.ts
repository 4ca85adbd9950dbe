import { type ISignal, Signal } from '@lumino/signaling';

import type { ClustersModel } from './clusters';

/** Where JupyterLab keeps what the user has chosen. */
export interface IStoredSettings {
  readonly composite: object;
  readonly changed: ISignal<unknown, unknown>;
}

/** What a user has chosen; always as it is now. */
export class Settings {
  /** Whether clusters are spoken of in notifications. */
  readonly notifications: boolean = true;
  /** Minutes before the end of a job at which one is warned. */
  readonly warnMinutes: number = 10;
  /** The page that a dashboard is opened at. */
  readonly dashboardPage: string = 'overview';

  /** Emitted when the user has chosen something else. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Take what is stored, now and whenever it changes. */
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

/** What remembers something from one visit to the next. */
export interface IStateStore {
  fetch: (key: string) => Promise<unknown>;
  save: (key: string, value: string) => Promise<unknown>;
}

const KEY = 'mpi-workbench:chosen';

/** Choose the cluster that was chosen at the last visit, and remember which one is. */
export async function persistSelection(model: ClustersModel, store: IStateStore): Promise<void> {
  let saved: unknown;
  try {
    saved = await store.fetch(KEY);
  } catch {
    // then the newest cluster is the chosen one
  }
  if (typeof saved === 'string' && model.selectedName === '') {
    model.select(saved);
  }
  const save = () => {
    if (model.selectedName !== '' && model.selectedName !== saved) {
      saved = model.selectedName;
      // what cannot be remembered is chosen again
      store.save(KEY, model.selectedName).catch(() => undefined);
    }
  };
  model.changed.connect(save);
  save();
}
