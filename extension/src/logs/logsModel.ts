import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError, type ILogSource } from '../api';
import type { ICluster, ILogFile } from '../contract';
import { ClusterIdentity } from '../model/clusterIdentity';
import type { IClusterLookup } from '../model/clusters';
import { LogTail } from './logText';

type IClusters = Pick<IClusterLookup, 'changed' | 'cluster' | 'hasEnded'>;

/** Return a lookup in which every cluster has ended: for the logs of a cluster whose name another one may have. */
export function endedClusters({ changed }: IClusters): IClusters {
  return { changed, cluster: () => undefined, hasEnded: () => true };
}

/** Milliseconds between two polls. */
export const POLL_INTERVAL = 1000;

/** The logs of one cluster, without any view. One log is read, and followed while a user can see it. */
export class LogsModel implements IDisposable {
  constructor(
    readonly name: string,
    private readonly source: ILogSource,
    private readonly clusters: IClusters,
    file: string | null = null,
    interval = POLL_INTERVAL
  ) {
    this._file = file;
    this.poll = new Poll({
      name: `mpi-workbench:logs:${name}`,
      auto: false,
      frequency: { interval },
      // a poll that is refreshed while it reads does not wait, and two reads at a time would repeat a part
      factory: () => (this.lastRead = this.lastRead.catch(() => undefined).then(() => this.read())),
      standby: () => !this.isReadDue && (!this._isFollowing || this.isComplete)
    });
    clusters.changed.connect(this.onClustersChanged);
    this.onClustersChanged();
  }

  /** Emitted when anything has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The names of the log files. */
  get fileNames(): IFileNames {
    return this._fileNames;
  }

  /** The file that is read. */
  get file(): string | null {
    return this._file;
  }

  /** The end of the file, as far as it is read. */
  get tail(): LogTail {
    return this._tail;
  }

  /** Why the last read failed; empty: it did not. */
  get error(): string {
    return this._error;
  }

  /** Whether the log is followed. */
  get isFollowing(): boolean {
    return this._isFollowing;
  }

  /** Whether the cluster has ended. */
  get hasEnded(): boolean {
    return this.clusters.hasEnded(this.name);
  }

  /** Whether the cluster has ended, and its logs were removed. */
  get areLogsRemoved(): boolean {
    return this._isEmpty && this.hasEnded;
  }

  /** Read another file. */
  select(file: string): void {
    if (file !== this._file) {
      this._file = file;
      this.restart();
    }
  }

  /** Follow the log, or stop to. */
  follow(isFollowing: boolean): void {
    this._isFollowing = isFollowing;
    this.emit();
    if (isFollowing) {
      this.refresh();
    }
  }

  /** Set whether the log is visible: nothing is read otherwise. */
  setVisible(isVisible: boolean): void {
    if (isVisible !== this.isVisible) {
      this.isVisible = isVisible;
      this.isListStale = true;
      if (isVisible) {
        this.refresh();
      } else {
        void this.poll.stop();
      }
    }
  }

  get isDisposed(): boolean {
    return this.poll.isDisposed;
  }

  dispose(): void {
    this.clusters.changed.disconnect(this.onClustersChanged);
    this.poll.dispose();
    Signal.clearData(this);
  }

  private async read(): Promise<void> {
    if (this.isDisposed) {
      return;
    }
    this.isReadDue = this.isComplete = false;
    try {
      if (this.isListStale) {
        // a change of the cluster during the request makes the list stale again
        this.isListStale = false;
        const files = await this.listFiles();
        this._isEmpty = files.length === 0;
        if (this.areLogsRemoved) {
          this._error = '';
          this.isListStale = this.isComplete = true;
          return;
        }
        this._fileNames = sortFileNames(files);
        this._file ??= this._fileNames.cluster[0] ?? this._fileNames.ranks[0] ?? null;
        if (this._file === null) {
          this.isListStale = true;
        }
      }
      const { _file: file, _tail: tail, hasEnded } = this;
      const isNew = file !== null && (await tail.read(from => this.source.part(file, from)));
      this._error = '';
      // an ended cluster writes no more
      this.isComplete = !isNew && hasEnded;
    } catch (error) {
      this.isListStale = true;
      this._error = error instanceof Error ? error.message : String(error);
      throw error;
    } finally {
      this.emit();
    }
  }

  // The server does not know a cluster that has ended and has no logs any more.
  private async listFiles(): Promise<ILogFile[]> {
    try {
      return await this.source.files();
    } catch (error) {
      if (error instanceof ApiError && error.isMissing && this.hasEnded) {
        return [];
      }
      throw error;
    }
  }

  private restart(): void {
    this._tail = new LogTail();
    this._error = '';
    this.emit();
    this.refresh();
  }

  // Reads at once, or right after the read that is under way.
  private refresh(): void {
    if (this.isVisible) {
      this.isReadDue = true;
      void this.poll.schedule({ interval: Poll.IMMEDIATE });
    }
  }

  private readonly onClustersChanged = (): void => {
    const { hasEnded } = this;
    const cluster = this.clusters.cluster(this.name);
    const isKnown = cluster !== undefined || hasEnded;
    if (!isKnown || (cluster === this.cluster && hasEnded === this.identity.hasEnded)) {
      return;
    }
    this.cluster = cluster;
    this.isListStale = true;
    if (this.identity.update(cluster?.id)) {
      // a later cluster can have the name of an earlier one
      this.restart();
    } else {
      this.emit();
    }
  };

  private emit(): void {
    if (!this.isDisposed) {
      this._changed.emit();
    }
  }

  private readonly poll: Poll;
  private lastRead = Promise.resolve();
  private isReadDue = false;
  // Whether the cluster has ended, and all of its log is read.
  private isComplete = false;
  private readonly identity = new ClusterIdentity();
  private cluster: ICluster | undefined;
  private isVisible = false;
  private isListStale = true;
  private _fileNames: IFileNames = { cluster: [], ranks: [] };
  private _file: string | null;
  private _tail = new LogTail();
  private _error = '';
  private _isEmpty = false;
  private _isFollowing = true;
  private readonly _changed = new Signal<this, void>(this);
}

/** Return the text of the banner above a log; empty: no banner. */
export function bannerText(
  { tail, areLogsRemoved, hasEnded }: Pick<LogsModel, 'tail' | 'areLogsRemoved' | 'hasEnded'>,
  trans: TranslationBundle
): string {
  const isEmpty = tail.size === 0;
  if (areLogsRemoved) {
    return isEmpty
      ? trans.__('The cluster has ended, and its logs have been removed.')
      : trans.__(
          'The cluster has ended, and its logs have been removed; this text was loaded before.'
        );
  }
  if (hasEnded) {
    return isEmpty
      ? trans.__('The cluster has ended, and this log is empty.')
      : trans.__('The cluster has ended; this is its last log.');
  }
  return isEmpty ? trans.__('This log is still empty.') : '';
}

const KINDS = ['head', 'job', 'world', 'rank'];

/** Names of log files: those of the cluster, and those of ranks, each in their order. */
export interface IFileNames {
  cluster: string[];
  ranks: string[];
}

/** Return the names of files in the order of a list. */
export function sortFileNames(files: readonly ILogFile[]): IFileNames {
  const keys = new Map(files.map(({ name }) => [name, sortKey(name)]));
  const names = [...keys.keys()].sort((one, other) => compare(keys.get(one), keys.get(other)));
  return {
    cluster: names.filter(name => !isRank(name)),
    ranks: names.filter(isRank)
  };
}

/**
 * Return those of some ranks' files that are looked for.
 *
 * @param filter - Numbers by their first digits, ranges as `0-7`, with commas or spaces between.
 */
export function filterRanks(ranks: readonly string[], filter: string): string[] {
  const terms = filter
    .toLowerCase()
    .split(/[\s,]+/)
    .filter(Boolean);
  return ranks.filter(name => terms.length === 0 || terms.some(term => matchesTerm(name, term)));
}

function matchesTerm(name: string, term: string): boolean {
  const number = name.replace('rank-', '');
  const range = /^(\d+)-(\d+)$/.exec(term);
  if (range) {
    return Number(range[1]) <= Number(number) && Number(number) <= Number(range[2]);
  }
  return number.startsWith(term) || name === term;
}

function isRank(name: string): boolean {
  return name.startsWith('rank-');
}

function sortKey(name: string): number[] {
  const [, kind = name, number] = /^([a-z]+)-(\d+)$/.exec(name) ?? [];
  const place = KINDS.indexOf(kind);
  return [place < 0 ? KINDS.length : place, Number(number ?? 0)];
}

function compare(one: number[] = [], other: number[] = []): number {
  const at = one.findIndex((value, place) => value !== other[place]);
  return at < 0 ? 0 : (one[at] ?? 0) - (other[at] ?? 0);
}
