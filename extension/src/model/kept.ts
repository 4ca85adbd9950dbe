import type { ICluster } from '../contract';

/** Return clusters by their names; one that has not changed is the object that was known before. */
export function kept(
  known: ReadonlyMap<string, ICluster>,
  told: readonly ICluster[]
): Map<string, ICluster> {
  return new Map(told.map(its => [its.name, same(known.get(its.name), its)]));
}

function same(known: ICluster | undefined, told: ICluster): ICluster {
  return known && JSON.stringify(known) === JSON.stringify(told) ? known : told;
}
