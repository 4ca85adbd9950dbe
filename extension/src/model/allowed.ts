import type { ICluster } from '../contract';

/** Return whether a cluster has ranks that one can work with. */
export function isUp(cluster: ICluster | undefined): boolean {
  return cluster !== undefined && cluster.up > 0 && cluster.state !== 'closing';
}

/** Return whether the ranks of a cluster can be made others. */
export function isChangeable(cluster: ICluster | undefined): boolean {
  return isUp(cluster) && cluster?.busy === null;
}

/** Return whether a cluster can be stopped: also one that is scaled, or has no ranks yet. */
export function isStoppable(cluster: ICluster | undefined): boolean {
  return cluster !== undefined && cluster.busy !== 'stopping';
}
