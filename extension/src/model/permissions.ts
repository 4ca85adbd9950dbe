import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { ICluster } from '../contract';
import type { ClustersModel } from './clusters';

/** Return whether a cluster has ranks that one can work with. */
export function isUp(cluster: ICluster | undefined): boolean {
  return cluster !== undefined && cluster.up > 0 && cluster.state !== 'closing';
}

/** Return whether a cluster can be scaled or restarted. */
export function isChangeable(cluster: ICluster | undefined): boolean {
  return isUp(cluster) && cluster?.busy === null;
}

/** Return whether a cluster can be stopped: also one that is scaled, or has no ranks yet. */
export function isStoppable(cluster: ICluster | undefined): boolean {
  return cluster !== undefined && cluster.busy !== 'stopping';
}

/**
 * Return the cluster of a command: the cluster that its arguments name, else the selected one.
 *
 * The menu of a card is for the cluster that a click on the card has selected, and for no other one if that cluster
 * ends while the menu is open.
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
