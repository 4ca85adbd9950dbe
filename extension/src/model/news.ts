import type { ICluster, IStart } from '../contract';

/** What somebody wants to know wherever he looks. */
export interface INews {
  kind: 'ready' | 'ends' | 'lost' | 'failed' | 'error' | 'start-failed';
  /** Of the cluster or, if it has no name yet, of the start. */
  name: string;
  cluster?: ICluster;
  start?: IStart;
}

// Nobody is told of the end of a cluster that he ends himself.
const ENDING = ['closing', 'completing', 'done'];

/** Finds out what is news; each is told once. What is so when one comes is none, but a job that is about to end. */
export class Reporter {
  /**
   * Return what is news since the last time.
   *
   * @param now - Seconds since the epoch.
   * @param warn - Seconds before the end of a job at which one is warned.
   */
  report(
    clusters: readonly ICluster[],
    starts: readonly IStart[],
    now: number,
    warn: number
  ): INews[] {
    const news = [
      ...clusters.flatMap(its => this.ofCluster(its, now, warn)),
      ...starts.flatMap(its => this.ofStart(its))
    ];
    this.clusters = new Map(clusters.map(its => [its.id, its]));
    this.starts = new Map(starts.map(its => [its.id, its]));
    this.isFirst = false;
    // a job's end is told once, even if clocks differ
    this.warned = new Set([...this.warned].filter(id => this.clusters.has(id)));
    return news;
  }

  private ofCluster(cluster: ICluster, now: number, warn: number): INews[] {
    const kinds: INews['kind'][] = [];
    const { id, name, state, up, ranks, ends, error } = cluster;
    if (ends !== null && ends - now < warn && ends > now && up > 0 && !this.warned.has(id)) {
      this.warned.add(id);
      kinds.push('ends');
    }
    const before = this.clusters.get(id);
    if (before ? before.state !== state : !this.isFirst) {
      if (state === 'ready' && before?.state !== 'degraded') {
        kinds.push('ready');
      } else if (state === 'failed') {
        kinds.push('failed');
      }
    }
    const isMeant = cluster.busy !== null || ENDING.includes(state) || state === 'failed';
    if (before && !isMeant && before.busy === null && up < before.up && ranks === before.ranks) {
      kinds.push('lost');
    }
    if (before && error !== null && error !== before.error) {
      kinds.push('error');
    }
    return kinds.map(kind => ({ kind, name, cluster }));
  }

  private ofStart(start: IStart): INews[] {
    const isNew = start.state === 'failed' && this.starts.get(start.id)?.state !== 'failed';
    return isNew && !this.isFirst
      ? [{ kind: 'start-failed', name: start.name ?? start.id, start }]
      : [];
  }

  private isFirst = true;
  private clusters = new Map<string, ICluster>();
  private starts = new Map<string, IStart>();
  private warned = new Set<string>();
}
