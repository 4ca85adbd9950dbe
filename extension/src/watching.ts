import type { IDisposable } from '@lumino/disposable';

import type { ClustersModel } from './model/clusters';

/** Has a model be watched while something can be seen; `look` is called when that may have changed. */
export class Watching implements IDisposable {
  constructor(
    private readonly model: ClustersModel,
    private readonly isSeen: () => boolean
  ) {
    document.addEventListener('visibilitychange', this.look);
  }

  readonly look = (): void => {
    if (this.isSeen() && !document.hidden && !this.isDisposed) {
      this.watch ??= this.model.watch();
    } else {
      this.watch?.dispose();
      this.watch = undefined;
    }
  };

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this.look);
    this.look();
  }

  private watch: IDisposable | undefined;
  private _isDisposed = false;
}
