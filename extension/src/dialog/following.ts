import type { ISignal } from '@lumino/signaling';

import type { ICluster, IStart } from '../contract';

/** What is known of clusters, as the model tells. */
export interface IClusters {
  readonly changed: ISignal<unknown, void>;
  readonly starts: readonly IStart[];
  /** Starts by their ids that somebody follows where he asked for them. */
  readonly attended: Set<string>;
  cluster: (name: string) => ICluster | undefined;
}

/** Follows one start. */
export class Following {
  constructor(
    private readonly clusters: IClusters,
    private readonly start: IStart
  ) {
    clusters.attended.add(start.id);
    this.end = new Promise(resolve => {
      this.resolve = resolve;
    });
    clusters.changed.connect(this.look);
    this.look();
  }

  /** Null when the start needs nobody any more: it is ready, in a queue or gone; the start itself if it has failed. */
  readonly end: Promise<IStart | null>;

  /** Look no longer. */
  stop(): void {
    this.clusters.changed.disconnect(this.look);
    this.clusters.attended.delete(this.start.id);
  }

  private readonly look = (): void => {
    const its = this.clusters.starts.find(other => other.id === this.start.id);
    if (its?.state === 'failed') {
      this.tell(its);
    } else if (this.isSeen && !its) {
      this.tell(null);
    } else if (this.isTaken(its?.name ?? this.start.name)) {
      this.tell(null);
    }
    this.isSeen ||= its !== undefined;
  };

  // Whether it is a cluster that waits for its job or has its ranks; not an older one of the same name.
  private isTaken(name: string | null): boolean {
    const cluster = name === null ? undefined : this.clusters.cluster(name);
    return (
      cluster !== undefined &&
      cluster.created >= this.start.since &&
      (cluster.jobs.length > 0 || cluster.state === 'ready')
    );
  }

  private tell(end: IStart | null): void {
    this.stop();
    this.resolve(end);
  }

  private isSeen = false;
  private resolve!: (end: IStart | null) => void;
}
