import type { ICluster, IEnded, IStart } from '../contract';

/** What somebody wants to know wherever he looks. */
export interface INews {
  kind: 'ready' | 'ends' | 'lost' | 'failed' | 'error' | 'start-failed' | 'ended';
  /** Of the cluster; empty: it has none yet. */
  name: string;
  cluster?: ICluster;
  start?: IStart;
  ended?: IEnded;
}

// Clusters and starts that are remembered although they are gone.
const GONE = 2000;
// Nobody is told of the end of a cluster that he ends himself.
const ENDING = ['closing', 'completing', 'done'];

/** Finds out what is news; each is told once. What is so when one comes is none, but a job that is about to end. */
export class Reporter {
  /**
   * Return what is news since the last time.
   *
   * @param now - Seconds since the epoch.
   * @param warn - Seconds before the end of a job at which one is warned.
   * @param ended - Clusters that have ended.
   */
  report(
    clusters: readonly ICluster[],
    starts: readonly IStart[],
    now: number,
    warn: number,
    ended: readonly IEnded[] = []
  ): INews[] {
    if (this.began === 0) {
      this.began = now;
      // by the clock of the head or the scheduler one may end later than now
      remember(this.over, ended);
    }
    const news = [
      ...clusters.flatMap(its => this.ofCluster(its, starts, now, warn)),
      ...starts.flatMap(its => this.ofStart(its)),
      ...ended.flatMap(its => this.ofEnded(its, starts))
    ];
    remember(this.clusters, clusters);
    remember(this.starts, starts);
    remember(this.over, ended);
    return news;
  }

  private ofCluster(
    cluster: ICluster,
    starts: readonly IStart[],
    now: number,
    warn: number
  ): INews[] {
    const kinds: INews['kind'][] = [];
    const { id, name, state, up, ranks, ends, error, created } = cluster;
    if (ends !== null && ends - now < warn && ends > now && up > 0 && !this.warned.has(id)) {
      remember(this.warned, [cluster]);
      kinds.push('ends');
    }
    const before = this.clusters.get(id);
    if (before ? before.state !== state : created > this.began) {
      if (state === 'ready' && before?.state !== 'degraded') {
        kinds.push('ready');
      } else if (state === 'failed' && !isOf(starts, cluster)) {
        kinds.push('failed');
      }
    }
    const isMeant = cluster.busy !== null || ENDING.includes(state) || state === 'failed';
    // a world that dies rank by rank is told once, when the first one is lost
    const wasWhole = before?.busy === null && before.up === before.ranks && before.ranks === ranks;
    if (wasWhole && !isMeant && up < ranks) {
      kinds.push('lost');
    }
    if (before && error !== null && error !== before.error) {
      kinds.push('error');
    }
    return kinds.map(kind => ({ kind, name, cluster }));
  }

  private ofStart(start: IStart): INews[] {
    const before = this.starts.get(start.id);
    const isNew = before ? before.state !== 'failed' : start.since > this.began;
    return isNew && start.state === 'failed'
      ? [{ kind: 'start-failed', name: start.name ?? '', start }]
      : [];
  }

  private ofEnded(ended: IEnded, starts: readonly IStart[]): INews[] {
    const { id, name, state } = ended;
    if (this.over.has(id)) {
      return [];
    }
    const before = this.clusters.get(id);
    const isMeant = state === 'stopped' || before?.busy === 'stopping';
    const isTold = before?.state === 'failed' || isOf(starts, ended);
    return !isMeant && !isTold ? [{ kind: 'ended', name, ended }] : [];
  }

  // When the first report was.
  private began = 0;
  private readonly clusters = new Map<string, ICluster>();
  private readonly starts = new Map<string, IStart>();
  private readonly warned = new Map<string, ICluster>();
  private readonly over = new Map<string, IEnded>();
}

// Also what is gone, but not for ever: what cannot be read for a moment is no news when it is there again.
function remember<T extends { id: string }>(known: Map<string, T>, there: readonly T[]): void {
  for (const its of there) {
    known.delete(its.id);
    known.set(its.id, its);
  }
  for (const id of known.keys()) {
    if (known.size <= there.length + GONE) {
      break;
    }
    known.delete(id);
  }
}

// Whether a cluster is that of a start, which tells of its failure.
function isOf(
  starts: readonly IStart[],
  { name, created }: Pick<ICluster, 'name' | 'created'>
): boolean {
  return starts.some(its => its.name === name && its.since <= created);
}
