/** Which cluster a page shows: a name can be given again. */
export class Shown {
  /** Whether the cluster has ended. */
  get isOver(): boolean {
    return this._isOver;
  }

  /** Whether the page has shown it. */
  get wasThere(): boolean {
    return this.id !== undefined;
  }

  /**
   * Hear which cluster has the name now.
   *
   * @param id - Its identity; undefined: none has.
   * @returns Whether the page is to be loaded again.
   */
  hear(id: string | undefined): boolean {
    const isAnother = this.wasThere ? id !== this.id : this.isWaiting;
    const isNew = id !== undefined && (this._isOver || isAnother);
    this._isOver = id === undefined;
    this.id = id ?? this.id;
    return isNew;
  }

  /** Hear that the cluster has nothing to show yet: what the page has got instead is loaded again. */
  wait(): void {
    this.isWaiting = true;
  }

  // undefined: nothing of a cluster was shown yet
  private id: string | undefined;
  private isWaiting = false;
  private _isOver = false;
}
