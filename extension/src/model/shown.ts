/** Which cluster a page shows: a name can be given again. */
export class Shown {
  /** @param id - Identity of the cluster; undefined: it is not known yet. */
  constructor(private id: string | undefined) {}

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
    const isAnother = id !== this.id && this.wasThere;
    const isNew = id !== undefined && (this._isOver || isAnother);
    this._isOver = id === undefined;
    this.id = id ?? this.id;
    return isNew;
  }

  private _isOver = false;
}
