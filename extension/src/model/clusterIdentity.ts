/** The identity of the cluster that a tab shows: a later cluster can have the name of an earlier one. */
export class ClusterIdentity {
  /** Whether the cluster has ended. */
  get hasEnded(): boolean {
    return this._hasEnded;
  }

  /** Whether the tab has shown a cluster. */
  get isKnown(): boolean {
    return this.id !== undefined;
  }

  /**
   * Set which cluster has the name now.
   *
   * @param id - The identity of the cluster; undefined: no cluster has the name.
   * @returns Whether the tab has to load its content again.
   */
  update(id: string | undefined): boolean {
    const isAnother = this.isKnown ? id !== this.id : this.isPending;
    const isNew = id !== undefined && (this._hasEnded || isAnother);
    this._hasEnded = id === undefined;
    this.id = id ?? this.id;
    return isNew;
  }

  /** Mark that the cluster has no content yet: the tab loads again when there is some. */
  markPending(): void {
    this.isPending = true;
  }

  // undefined: no cluster was shown yet
  private id: string | undefined;
  private isPending = false;
  private _hasEnded = false;
}
