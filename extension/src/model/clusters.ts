import { JSONExt } from '@lumino/coreutils';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type {
  IBrokenRecord,
  IChange,
  ICluster,
  IEnded,
  IPulse,
  IStart,
  IState,
  Message
} from '../contract';
import { type ISocket, type ISocketEvents, ReconnectingSocket } from './reconnectingSocket';

/** The requests and the websocket of the server. */
export interface IClusterSource {
  clusters: () => Promise<IState>;
  connect: (events: ISocketEvents) => ISocket;
}

/** The part of the model of clusters that other models use. */
export interface IClusterLookup {
  readonly changed: ISignal<unknown, void>;
  readonly connectionState: ConnectionState;
  findStart: (id: string) => IStart | undefined;
  cluster: (name: string) => ICluster | undefined;
  hasEnded: (name: string) => boolean;
}

/** The state of the clusters of this user, without any view: views connect to its signals. */
export class ClustersModel implements IDisposable {
  constructor(
    private readonly source: IClusterSource,
    random?: () => number
  ) {
    this.socket = new ReconnectingSocket({
      connect: source.connect,
      received: text => {
        this.receive(JSON.parse(text) as Message);
      },
      lost: () => {
        void this.requestState();
      },
      random
    });
  }

  /** A form that the user can see: the form shows the failure of its start. */
  visibleForm: { readonly startId: string } | null = null;

  /** Emitted when anything but a pulse has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted when there are new pulses. */
  get pulsesChanged(): ISignal<this, void> {
    return this._pulsesChanged;
  }

  /** The clusters, the newest first. A cluster that has not changed is the same object as before. */
  get clusters(): readonly ICluster[] {
    return this._clusters;
  }

  /** Records that cannot be read. */
  get broken(): readonly IBrokenRecord[] {
    return this._broken;
  }

  /** Requested starts, without those whose clusters are ready. */
  get starts(): readonly IStart[] {
    return this._starts;
  }

  /** Return a start, for some minutes also one whose cluster is ready. */
  findStart(id: string): IStart | undefined {
    return this.allStarts.find(start => start.id === id);
  }

  /** Clusters that ended in the last days, the last one first. */
  get ended(): readonly IEnded[] {
    return this._ended;
  }

  /** Whether the state is current. */
  get connectionState(): ConnectionState {
    return this._connectionState;
  }

  /** Why the state is not current. */
  get connectionError(): string {
    return this._connectionError;
  }

  /** The version of the server; empty: no state has arrived yet. */
  get version(): string {
    return this._version;
  }

  /** Whether the server was of another version when this page was loaded. */
  get isOutdated(): boolean {
    return this._version !== this.initialVersion;
  }

  /** Seconds since the epoch, by the server's clock. */
  now(): number {
    return Date.now() / 1000 + this.clockOffset;
  }

  /** Return the cluster of a name. */
  cluster(name: string): ICluster | undefined {
    return this.byName.get(name);
  }

  /** Return whether it is certain that no cluster has a name. */
  hasEnded(name: string): boolean {
    const isUnreadable = this._broken.some(record => record.name === name || record.name === '');
    return this._connectionState === 'live' && !this.byName.has(name) && !isUnreadable;
  }

  /** Return whether it is certain that a cluster has ended; another one may have its name. */
  hasClusterEnded({ id, name }: ICluster): boolean {
    const current = this.byName.get(name);
    return current ? current.id !== id : this.hasEnded(name);
  }

  /** Return the last pulses of a cluster. */
  pulses(cluster: ICluster): readonly IPulse[] {
    return this.history.get(cluster);
  }

  /** The selected cluster, else the newest that is up: the cluster of commands without a name. */
  get selected(): ICluster | undefined {
    return (
      this.byName.get(this._selectedName) ??
      this._clusters.find(cluster => cluster.up > 0) ??
      this._clusters[0]
    );
  }

  /** The name of the selected cluster, which may not exist; empty: none was selected. */
  get selectedName(): string {
    return this._selectedName;
  }

  /** Select a cluster. */
  select(name: string): void {
    if (this._selectedName !== name) {
      this._selectedName = name;
      this._changed.emit();
    }
  }

  /** Connect. A second start does nothing. */
  start(): void {
    this.socket.start();
  }

  /** Connect at once, before the next attempt is due, or after the last one. */
  retry(): void {
    this.socket.reconnectNow();
    this.socket.start();
  }

  /**
   * Request pulses until the returned object is disposed.
   *
   * @param name - The name of the cluster whose pulses are visible; undefined: those of all clusters.
   */
  watch(name?: string): IDisposable {
    const viewer = { name };
    this.viewers.add(viewer);
    this.sendVisibility();
    return new DisposableDelegate(() => {
      this.viewers.delete(viewer);
      this.sendVisibility();
    });
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this.socket.close();
      Signal.clearData(this);
    }
  }

  private sendVisibility(): void {
    const names = new Set([...this.viewers].map(viewer => viewer.name));
    this.socket.setVisible(
      names.has(undefined) || (names.size > 0 && ([...names] as string[]).sort())
    );
  }

  private receive(message: Message): void {
    this.clockOffset = message.time - Date.now() / 1000;
    if (message.type === 'pulse') {
      this.addPulses(message.pulses);
    } else if (message.type === 'state') {
      this.replaceAll(message, 'live');
    } else {
      this.applyChange(message);
    }
  }

  private replaceAll(state: IState, connectionState: ConnectionState): void {
    this._version = state.version;
    this.initialVersion ||= state.version;
    this.setConnectionState(connectionState, '');
    this.byName = new Map(
      state.clusters.map(cluster => [cluster.name, reuse(this.byName.get(cluster.name), cluster)])
    );
    this.refresh(state);
  }

  private applyChange(change: IChange): void {
    for (const name of change.gone) {
      this.byName.delete(name);
    }
    for (const cluster of change.clusters) {
      this.byName.set(cluster.name, cluster);
    }
    this.refresh(change);
  }

  private refresh({ broken, starts, ended }: Pick<IChange, 'broken' | 'starts' | 'ended'>): void {
    this._clusters = [...this.byName.values()].sort(
      (one, other) => other.created - one.created || one.name.localeCompare(other.name)
    );
    this._broken = broken;
    this._ended = ended ?? this._ended;
    this.allStarts = starts;
    this._starts = starts.filter(start => start.state !== 'ready');
    this.history.retain(this.byName);
    this._changed.emit();
  }

  private addPulses(pulses: Record<string, IPulse>): void {
    for (const [name, pulse] of Object.entries(pulses)) {
      const cluster = this.byName.get(name);
      if (cluster) {
        this.history.add(cluster, pulse);
      }
    }
    this._pulsesChanged.emit();
  }

  // A websocket does not report why it cannot be opened; a request does, and returns the state without a websocket.
  private async requestState(): Promise<void> {
    if (this._connectionState === 'live') {
      this.setConnectionState('reconnecting', '');
      this._changed.emit();
    }
    // a late response is older than what came after it
    this.requestCount += 1;
    const count = this.requestCount;
    const isLatest = () => count === this.requestCount && !this.isSocketOpen();
    try {
      const state = await this.source.clusters();
      if (isLatest()) {
        this.clockOffset = state.time - Date.now() / 1000;
        this.replaceAll(state, 'reconnecting');
      }
    } catch (error) {
      if (isLatest()) {
        this.setConnectionState(
          connectionStateAfter(error),
          error instanceof Error ? error.message : String(error)
        );
        if (this._connectionState === 'missing' && this._version === '') {
          // there was never an extension on this server: it has to be installed first
          this.socket.close();
        }
        this._changed.emit();
      }
    }
  }

  private isSocketOpen(): boolean {
    return this._isDisposed || this.socket.isOpen;
  }

  private setConnectionState(state: ConnectionState, error: string): void {
    this._connectionState = state;
    this._connectionError = error;
  }

  private readonly socket: ReconnectingSocket;
  private readonly history = new PulseHistory();
  private byName = new Map<string, ICluster>();
  private readonly viewers = new Set<{ name: string | undefined }>();
  // The number of requests for the whole state.
  private requestCount = 0;
  // Seconds by which the server's clock is ahead of this one.
  private clockOffset = 0;
  private _clusters: readonly ICluster[] = [];
  private _broken: readonly IBrokenRecord[] = [];
  private allStarts: readonly IStart[] = [];
  private _starts: readonly IStart[] = [];
  private _ended: readonly IEnded[] = [];
  private _connectionState: ConnectionState = 'connecting';
  private _connectionError = '';
  private _version = '';
  // The version of the server when this page was loaded.
  private initialVersion = '';
  private _selectedName = '';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _pulsesChanged = new Signal<this, void>(this);
}

/** The number of pulses in the history of a cluster: two minutes. */
export const HISTORY_LENGTH = 60;

/** The last pulses of clusters. */
export class PulseHistory {
  /** Return the pulses of a cluster, the last one at the end; the same array until there is another pulse. */
  get(cluster: Pick<ICluster, 'name' | 'id'>): readonly IPulse[] {
    const entry = this.byName.get(cluster.name);
    return entry?.id === cluster.id ? entry.pulses : NONE;
  }

  /** Add a pulse. */
  add(cluster: Pick<ICluster, 'name' | 'id'>, pulse: IPulse): void {
    const pulses = [...this.get(cluster).slice(1 - HISTORY_LENGTH), pulse];
    this.byName.set(cluster.name, { id: cluster.id, pulses });
  }

  /** Forget all but the clusters of these names. */
  retain(names: ReadonlySet<string> | ReadonlyMap<string, unknown>): void {
    for (const name of this.byName.keys()) {
      if (!names.has(name)) {
        this.byName.delete(name);
      }
    }
  }

  // By name, with the id of the cluster: a later cluster can have the name of an earlier one.
  private readonly byName = new Map<string, { id: string; pulses: readonly IPulse[] }>();
}

const NONE: readonly IPulse[] = [];

/** The state of the connection: `missing` if the server has no extension, `refused` if it denies access. */
export type ConnectionState = 'connecting' | 'live' | 'reconnecting' | 'missing' | 'refused';

/** Return the state of the connection after a failed request. */
export function connectionStateAfter(error: unknown): ConnectionState {
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

// A cluster that has not changed stays the same object.
function reuse(known: ICluster | undefined, current: ICluster): ICluster {
  return known && JSONExt.deepEqual({ ...known }, { ...current }) ? known : current;
}
