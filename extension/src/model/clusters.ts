import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type {
  IBroken,
  IChange,
  ICluster,
  IEnded,
  IPulse,
  IStart,
  IState,
  Message
} from '../contract';
import { type IEvents, type ISocket, Link } from './reconnectingSocket';

/** Where the news come from. */
export interface ISource {
  clusters: () => Promise<IState>;
  connect: (events: IEvents) => ISocket;
}

/** All that is known of the clusters of this user. Knows nothing of pages; what shows it listens to its signals. */
export class ClustersModel implements IDisposable {
  constructor(
    private readonly source: ISource,
    random?: () => number
  ) {
    this.link = new Link({
      connect: source.connect,
      received: text => {
        this.take(JSON.parse(text) as Message);
      },
      lost: () => {
        void this.ask();
      },
      random
    });
  }

  /** Emitted when anything but a pulse is new. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted when there are new pulses. */
  get pulsed(): ISignal<this, void> {
    return this._pulsed;
  }

  /** The clusters, the newest first. A cluster that has not changed is the same object as before. */
  get clusters(): readonly ICluster[] {
    return this._clusters;
  }

  /** Records that cannot be used. */
  get broken(): readonly IBroken[] {
    return this._broken;
  }

  /** Starts that were asked for, without those that are clusters by now. */
  get starts(): readonly IStart[] {
    return this._starts;
  }

  /** Return a start, for some minutes also one that is a cluster by now. */
  startOf(id: string): IStart | undefined {
    return this.allStarts.find(its => its.id === id);
  }

  /** Clusters that ended in the last days, the last one first. */
  get ended(): readonly IEnded[] {
    return this._ended;
  }

  /** Whether all this is new. */
  get state(): LinkState {
    return this._state;
  }

  /** Why it is not, in words. */
  get trouble(): string {
    return this._trouble;
  }

  /** What the server calls its version; empty: it has told nothing yet. */
  get version(): string {
    return this._version;
  }

  /** Whether the server was of another version when this page was loaded. */
  get isOutdated(): boolean {
    return this._version !== this.first;
  }

  /** Seconds since the epoch, by the server's clock. */
  now(): number {
    return Date.now() / 1000 + this.ahead;
  }

  /** Return the cluster of a name. */
  cluster(name: string): ICluster | undefined {
    return this.byName.get(name);
  }

  /** Return whether there is no cluster of a name, and that is known. */
  hasEnded(name: string): boolean {
    const isUnreadable = this._broken.some(its => its.name === name || its.name === '');
    return this._state === 'live' && !this.byName.has(name) && !isUnreadable;
  }

  /** Return whether a cluster has ended, and that is known: there may be another one of its name. */
  isOver({ id, name }: ICluster): boolean {
    const its = this.byName.get(name);
    return its ? its.id !== id : this.hasEnded(name);
  }

  /** Return the last pulses of a cluster. */
  pulses(cluster: ICluster): readonly IPulse[] {
    return this.history.of(cluster);
  }

  /** The cluster that was chosen, else the newest that is up; what commands mean that are given no name. */
  get chosen(): ICluster | undefined {
    return (
      this.byName.get(this._choice) ?? this._clusters.find(its => its.up > 0) ?? this._clusters[0]
    );
  }

  /** The name of the cluster that was chosen, which may not be there; empty: none was. */
  get choice(): string {
    return this._choice;
  }

  /** Choose a cluster. */
  choose(name: string): void {
    if (this._choice !== name) {
      this._choice = name;
      this._changed.emit();
    }
  }

  /** Begin to listen. A second start does nothing. */
  start(): void {
    this.link.start();
  }

  /** Try at once to connect, where the next try is still some time away, or none is made any more. */
  retry(): void {
    this.link.hurry();
    this.link.start();
  }

  /**
   * Return what is disposed when somebody looks no longer: pulses come only while somebody does.
   *
   * @param name - Of the cluster whose pulses are seen; undefined: those of all are.
   */
  watch(name?: string): IDisposable {
    const viewer = { name };
    this.viewers.add(viewer);
    this.sayVisible();
    return new DisposableDelegate(() => {
      this.viewers.delete(viewer);
      this.sayVisible();
    });
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this.link.close();
      Signal.clearData(this);
    }
  }

  private sayVisible(): void {
    const names = new Set([...this.viewers].map(its => its.name));
    this.link.setVisible(
      names.has(undefined) || (names.size > 0 && ([...names] as string[]).sort())
    );
  }

  private take(message: Message): void {
    this.ahead = message.time - Date.now() / 1000;
    if (message.type === 'pulse') {
      this.beat(message.pulses);
    } else if (message.type === 'state') {
      this.whole(message, 'live');
    } else {
      this.change(message);
    }
  }

  private whole(state: IState, link: LinkState): void {
    this._version = state.version;
    this.first ||= state.version;
    this.setState(link, '');
    this.byName = kept(this.byName, state.clusters);
    this.settle(state);
  }

  private change(change: IChange): void {
    for (const name of change.gone) {
      this.byName.delete(name);
    }
    for (const its of change.clusters) {
      this.byName.set(its.name, its);
    }
    this.settle(change);
  }

  private settle({ broken, starts, ended }: Pick<IChange, 'broken' | 'starts' | 'ended'>): void {
    this._clusters = [...this.byName.values()].sort(
      (one, other) => other.created - one.created || one.name.localeCompare(other.name)
    );
    this._broken = broken;
    this._ended = ended ?? this._ended;
    this.allStarts = starts;
    this._starts = starts.filter(its => its.state !== 'ready');
    this.history.keep(this.byName);
    this._changed.emit();
  }

  private beat(pulses: Record<string, IPulse>): void {
    for (const [name, pulse] of Object.entries(pulses)) {
      const cluster = this.byName.get(name);
      if (cluster) {
        this.history.add(cluster, pulse);
      }
    }
    this._pulsed.emit();
  }

  // A websocket does not say why it cannot be opened; a request does, and tells how things stand without one.
  private async ask(): Promise<void> {
    if (this._state === 'live') {
      this.setState('reconnecting', '');
      this._changed.emit();
    }
    // an answer that comes late tells less than the next one has told
    this.asked += 1;
    const { asked } = this;
    const isLast = () => asked === this.asked && !this.isListening();
    try {
      const state = await this.source.clusters();
      if (isLast()) {
        this.ahead = state.time - Date.now() / 1000;
        this.whole(state, 'reconnecting');
      }
    } catch (error) {
      if (isLast()) {
        this.setState(stateAfter(error), error instanceof Error ? error.message : String(error));
        if (this._state === 'missing' && this._version === '') {
          // it was never there: somebody has to install it first
          this.link.close();
        }
        this._changed.emit();
      }
    }
  }

  private isListening(): boolean {
    return this._isDisposed || this.link.isOpen;
  }

  private setState(state: LinkState, trouble: string): void {
    this._state = state;
    this._trouble = trouble;
  }

  private readonly link: Link;
  private readonly history = new History();
  private byName = new Map<string, ICluster>();
  private readonly viewers = new Set<{ name: string | undefined }>();
  // Requests for all clusters.
  private asked = 0;
  // Seconds by which the server's clock is ahead of this one.
  private ahead = 0;
  private _clusters: readonly ICluster[] = [];
  private _broken: readonly IBroken[] = [];
  private allStarts: readonly IStart[] = [];
  private _starts: readonly IStart[] = [];
  private _ended: readonly IEnded[] = [];
  private _state: LinkState = 'connecting';
  private _trouble = '';
  private _version = '';
  // The version that the server had first.
  private first = '';
  private _choice = '';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _pulsed = new Signal<this, void>(this);
}

/** Moments that are kept of each cluster: two minutes. */
export const KEPT = 60;

/** The last pulses of clusters. */
export class History {
  /** Return the pulses of a cluster, the last one at the end; the same array until there is another pulse. */
  of(cluster: Pick<ICluster, 'name' | 'id'>): readonly IPulse[] {
    const kept = this.kept.get(cluster.name);
    return kept?.id === cluster.id ? kept.pulses : NONE;
  }

  /** Take a pulse in. */
  add(cluster: Pick<ICluster, 'name' | 'id'>, pulse: IPulse): void {
    const pulses = [...this.of(cluster).slice(1 - KEPT), pulse];
    this.kept.set(cluster.name, { id: cluster.id, pulses });
  }

  /** Forget all but the clusters of these names. */
  keep(names: ReadonlySet<string> | ReadonlyMap<string, unknown>): void {
    for (const name of this.kept.keys()) {
      if (!names.has(name)) {
        this.kept.delete(name);
      }
    }
  }

  // By name, with the id of whom it is: a name can be given again.
  private readonly kept = new Map<string, { id: string; pulses: readonly IPulse[] }>();
}

const NONE: readonly IPulse[] = [];

/** Whether the news are new: `missing` if the server has no extension, `refused` if it lets nobody in. */
export type LinkState = 'connecting' | 'live' | 'reconnecting' | 'missing' | 'refused';

/** Return what a request that has failed says of the server. */
export function stateAfter(error: unknown): LinkState {
  if (error instanceof ApiError) {
    if (error.isMissing) {
      return 'missing';
    }
    if (error.status === 401 || error.status === 403) {
      return 'refused';
    }
  }
  return 'reconnecting';
}

/** Return clusters by their names; one that has not changed is the object that was known before. */
export function kept(
  known: ReadonlyMap<string, ICluster>,
  told: readonly ICluster[]
): Map<string, ICluster> {
  return new Map(told.map(its => [its.name, same(known.get(its.name), its)]));
}

function same(known: ICluster | undefined, told: ICluster): ICluster {
  return known && JSON.stringify(known) === JSON.stringify(told) ? known : told;
}
