import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { ICluster } from '../contract';
import type { ClustersModel } from './clusters';

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

/**
 * Return the cluster that a command means: that of its argument, else the chosen one.
 *
 * The menu of a card is about the cluster that a click on the card has chosen, and about no other if that one ends while
 * the menu is open.
 */
export function resolveCluster(
  { model }: { model: ClustersModel },
  args: ReadonlyPartialJSONObject
): ICluster | undefined {
  if (typeof args.name === 'string') {
    return model.cluster(args.name);
  }
  return args.isCard === true ? model.cluster(model.selectedName) : model.selected;
}
