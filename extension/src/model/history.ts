import type { ICluster, IPulse } from '../contract';

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
