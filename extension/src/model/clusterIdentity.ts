/** Which cluster a page shows: a name can be given again. */
export class ClusterIdentity {
  /** Whether the cluster has ended. */
  get hasEnded(): boolean {
    return this._hasEnded;
  }

  /** Whether the page has shown it. */
  get isKnown(): boolean {
    return this.id !== undefined;
  }

  /**
   * Hear which cluster has the name now.
   *
   * @param id - Its identity; undefined: none has.
   * @returns Whether the page is to be loaded again.
   */
  update(id: string | undefined): boolean {
    const isAnother = this.isKnown ? id !== this.id : this.isPending;
    const isNew = id !== undefined && (this._hasEnded || isAnother);
    this._hasEnded = id === undefined;
    this.id = id ?? this.id;
    return isNew;
  }

  /** Hear that the cluster has nothing to show yet: what the page has got instead is loaded again. */
  markPending(): void {
    this.isPending = true;
  }

  // undefined: nothing of a cluster was shown yet
  private id: string | undefined;
  private isPending = false;
  private _hasEnded = false;
}
