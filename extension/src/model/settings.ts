import { Signal, type ISignal } from '@lumino/signaling';

/** Where JupyterLab keeps what the user has chosen. */
export interface IStored {
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
  follow(stored: IStored): void {
    const take = () => {
      Object.assign(this, stored.composite);
      this._changed.emit();
    };
    stored.changed.connect(take);
    take();
  }

  private readonly _changed = new Signal<this, void>(this);
}
