import type { ICluster, IEnded, IStart } from '../contract';

/** An event that the user is notified of. */
export interface IClusterEvent {
  kind: 'ready' | 'ends' | 'lost' | 'failed' | 'error' | 'start-failed' | 'ended';
  /** Of the cluster; empty: it has none yet. */
  name: string;
  cluster?: ICluster;
  start?: IStart;
  ended?: IEnded;
}

// The number of clusters and starts that are remembered after they are gone.
const MAX_REMEMBERED = 2000;
// No notification about the end of a cluster that the user ends.
const ENDING_STATES = ['closing', 'completing', 'done'];

/** Detects events, each once. The state at the first call is no event, except a job that is about to end. */
export class ClusterEventDetector {
  /**
   * Return the events since the last call.
   *
   * @param now - Seconds since the epoch.
   * @param warn - Seconds before the end of a job at which the user is warned.
   * @param ended - Clusters that have ended.
   * @param visibleStart - The start whose failure a form shows: the failure is no event.
   */
  detect(
    clusters: readonly ICluster[],
    starts: readonly IStart[],
    now: number,
    warn: number,
    ended: readonly IEnded[] = [],
    visibleStart = ''
  ): IClusterEvent[] {
    if (this.firstTime === 0) {
      this.firstTime = now;
      // by the clock of the head or the scheduler a cluster may end later than now
      remember(this.ended, ended);
    }
    const events = [
      ...clusters.flatMap(cluster => this.clusterEvents(cluster, starts, now, warn)),
      ...starts.filter(({ id }) => id !== visibleStart).flatMap(start => this.startEvents(start)),
      ...ended.flatMap(cluster => this.endedEvents(cluster, starts))
    ];
    remember(this.clusters, clusters);
    remember(this.starts, starts);
    remember(this.ended, ended);
    return events;
  }

  private clusterEvents(
    cluster: ICluster,
    starts: readonly IStart[],
    now: number,
    warn: number
  ): IClusterEvent[] {
    const kinds: IClusterEvent['kind'][] = [];
    const { id, name, state, up, ranks, ends, error, created } = cluster;
    if (ends !== null && ends - now < warn && ends > now && up > 0 && !this.warned.has(id)) {
      remember(this.warned, [cluster]);
      kinds.push('ends');
    }
    const before = this.clusters.get(id);
    if (before ? before.state !== state : created > this.firstTime) {
      if (state === 'ready' && before?.state !== 'degraded') {
        kinds.push('ready');
      } else if (state === 'failed' && !isStartedBy(starts, cluster)) {
        kinds.push('failed');
      }
    }
    const isIntended = cluster.busy !== null || ENDING_STATES.includes(state) || state === 'failed';
    // a world that dies rank by rank is one event, when the first rank is lost
    const wasWhole = before?.busy === null && before.up === before.ranks && before.ranks === ranks;
    if (wasWhole && !isIntended && up < ranks) {
      kinds.push('lost');
    }
    if (before && error !== null && error !== before.error) {
      kinds.push('error');
    }
    return kinds.map(kind => ({ kind, name, cluster }));
  }

  private startEvents(start: IStart): IClusterEvent[] {
    const before = this.starts.get(start.id);
    const isNew = before ? before.state !== 'failed' : start.since > this.firstTime;
    return isNew && start.state === 'failed'
      ? [{ kind: 'start-failed', name: start.name ?? '', start }]
      : [];
  }

  private endedEvents(ended: IEnded, starts: readonly IStart[]): IClusterEvent[] {
    const { id, name, state } = ended;
    if (this.ended.has(id)) {
      return [];
    }
    const before = this.clusters.get(id);
    const isIntended = state === 'stopped' || before?.busy === 'stopping';
    const isReported = before?.state === 'failed' || isStartedBy(starts, ended);
    return !isIntended && !isReported ? [{ kind: 'ended', name, ended }] : [];
  }

  // The time of the first call.
  private firstTime = 0;
  private readonly clusters = new Map<string, ICluster>();
  private readonly starts = new Map<string, IStart>();
  private readonly warned = new Map<string, ICluster>();
  private readonly ended = new Map<string, IEnded>();
}

// Keeps also some that are gone: what cannot be read for a moment is no event when it can be read again.
function remember<T extends { id: string }>(known: Map<string, T>, items: readonly T[]): void {
  for (const item of items) {
    known.delete(item.id);
    known.set(item.id, item);
  }
  for (const id of known.keys()) {
    if (known.size <= items.length + MAX_REMEMBERED) {
      break;
    }
    known.delete(id);
  }
}

// Whether a cluster is that of a start, which reports its failure.
function isStartedBy(
  starts: readonly IStart[],
  { name, created }: Pick<ICluster, 'name' | 'created'>
): boolean {
  return starts.some(start => start.name === name && start.since <= created);
}
