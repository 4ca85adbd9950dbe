import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError, type ILogSource } from '../api';
import type { ICluster, IFile } from '../contract';
import { Shown } from '../model/clusterIdentity';
import { type INames, namesOf } from './logFiles';
import { LogTail } from './logText';
import { Turns } from './turns';

/** What is known of clusters, as their model tells. */
export interface IClusters {
  readonly changed: ISignal<unknown, void>;
  cluster: (name: string) => ICluster | undefined;
  /** Whether there is none of that name, and that is known. */
  hasEnded: (name: string) => boolean;
}

/** Return what is known of clusters where the one whose logs are shown has ended for good. */
export function withoutIt({ changed }: IClusters): IClusters {
  return { changed, cluster: () => undefined, hasEnded: () => true };
}

/** Milliseconds between two questions for more. */
export const EVERY = 1000;

/** The logs of one cluster, of which one is read, and followed while somebody sees it. Knows nothing of pages. */
export class LogsModel implements IDisposable {
  constructor(
    readonly name: string,
    private readonly source: ILogSource,
    private readonly clusters: IClusters,
    file: string | null = null,
    every = EVERY
  ) {
    this._file = file;
    this.turns = new Turns({
      turn: () => this.look(),
      isWanted: () => this.isSeen && this._isFollowing,
      every
    });
    clusters.changed.connect(this.onClusters);
    this.onClusters();
  }

  /** Emitted when anything is new. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The files that there are. */
  get names(): INames {
    return this._names;
  }

  /** The file that is read. */
  get file(): string | null {
    return this._file;
  }

  /** What is read of it. */
  get tail(): LogTail {
    return this._tail;
  }

  /** Why nothing could be read the last time. */
  get trouble(): string {
    return this._trouble;
  }

  /** Whether more is asked for. */
  get isFollowing(): boolean {
    return this._isFollowing;
  }

  /** Whether the cluster has ended. */
  get isOver(): boolean {
    return this.clusters.hasEnded(this.name);
  }

  /** Whether it has, and its logs are there no longer. */
  get isGone(): boolean {
    return this._isGone && this.isOver;
  }

  /** Read another file. */
  choose(file: string): void {
    if (file !== this._file) {
      this._file = file;
      this.begin();
    }
  }

  /** Ask for more as it comes, or no longer. */
  follow(isFollowing: boolean): void {
    this._isFollowing = isFollowing;
    this.emit();
    if (isFollowing) {
      this.wake();
    }
  }

  /** Say whether somebody sees it: nothing is read unless. */
  see(isSeen: boolean): void {
    if (isSeen !== this.isSeen) {
      this.isSeen = isSeen;
      this.isListOld = true;
      this.wake();
    }
  }

  get isDisposed(): boolean {
    return this.turns.isDisposed;
  }

  dispose(): void {
    this.clusters.changed.disconnect(this.onClusters);
    this.turns.dispose();
    Signal.clearData(this);
  }

  private async look(): Promise<boolean> {
    try {
      if (this.isListOld) {
        const files = await this.files();
        this._isGone = files.length === 0;
        if (this.isGone) {
          this._trouble = '';
          return false;
        }
        this._names = namesOf(files);
        this._file ??= this._names.cluster[0] ?? this._names.ranks[0] ?? null;
        this.isListOld = this._file === null;
      }
      const { _file: file, _tail: tail, isOver } = this;
      const isNew = file !== null && (await tail.read(from => this.source.part(file, from)));
      this._trouble = '';
      // what an ended cluster has written is soon read
      return isNew || !isOver;
    } catch (error) {
      this.isListOld = true;
      this._trouble = error instanceof Error ? error.message : String(error);
      throw error;
    } finally {
      this.emit();
    }
  }

  // None of a cluster that is unknown, once it has ended.
  private async files(): Promise<IFile[]> {
    try {
      return await this.source.files();
    } catch (error) {
      if (error instanceof ApiError && error.isMissing && this.isOver) {
        return [];
      }
      throw error;
    }
  }

  private begin(): void {
    this._tail = new LogTail();
    this._trouble = '';
    this.emit();
    this.wake();
  }

  private wake(): void {
    if (this.isSeen && !this.isDisposed) {
      this.turns.wake();
    }
  }

  private readonly onClusters = (): void => {
    const { isOver } = this;
    const its = this.clusters.cluster(this.name);
    const isKnown = its !== undefined || isOver;
    if (!isKnown || (its === this.cluster && isOver === this.which.isOver)) {
      return;
    }
    this.cluster = its;
    this.isListOld = true;
    if (this.which.hear(its?.id)) {
      // a name can be given again
      this.begin();
    } else {
      this.emit();
    }
  };

  private emit(): void {
    if (!this.isDisposed) {
      this._changed.emit();
    }
  }

  private readonly turns: Turns;
  private readonly which = new Shown();
  private cluster: ICluster | undefined;
  private isSeen = false;
  private isListOld = true;
  private _names: INames = { cluster: [], ranks: [] };
  private _file: string | null;
  private _tail = new LogTail();
  private _trouble = '';
  private _isGone = false;
  private _isFollowing = true;
  private readonly _changed = new Signal<this, void>(this);
}

/** Return what is said above a log; empty: it speaks for itself. */
export function noteOf(
  { tail, isGone, isOver }: Pick<LogsModel, 'tail' | 'isGone' | 'isOver'>,
  trans: TranslationBundle
): string {
  const isEmpty = tail.size === 0;
  if (isGone) {
    return isEmpty
      ? trans.__('The cluster has ended, and its logs have been removed.')
      : trans.__('The cluster has ended, and its logs have been removed; this was read before.');
  }
  if (isOver) {
    return isEmpty
      ? trans.__('The cluster has ended, and has left nothing in it.')
      : trans.__('The cluster has ended; this is what it left.');
  }
  return isEmpty ? trans.__('There is nothing in it yet.') : '';
}
