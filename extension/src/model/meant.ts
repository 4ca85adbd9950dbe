import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { ICluster } from '../contract';
import type { ClustersModel } from './clusters';

/**
 * Return the cluster that a command means: that of its argument, else the chosen one.
 *
 * The menu of a card is about the cluster that a click on the card has chosen, and about no other if that one ends while
 * the menu is open.
 */
export function meant(
  { model }: { model: ClustersModel },
  args: ReadonlyPartialJSONObject
): ICluster | undefined {
  if (typeof args.name === 'string') {
    return model.cluster(args.name);
  }
  return args.isCard === true ? model.cluster(model.choice) : model.chosen;
}
