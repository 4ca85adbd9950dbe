import type { ILogFile } from '../contract';

const KINDS = ['head', 'job', 'world', 'rank'];

/** Names of log files: those of the cluster and its worlds, and those of ranks, each in their order. */
export interface IFileNames {
  cluster: string[];
  ranks: string[];
}

/** Return the names of files in the order of a list. */
export function sortFileNames(files: readonly ILogFile[]): IFileNames {
  const keys = new Map(files.map(({ name }) => [name, sortKey(name)]));
  const names = [...keys.keys()].sort((one, other) => compare(keys.get(one), keys.get(other)));
  return {
    cluster: names.filter(name => !isRank(name)),
    ranks: names.filter(isRank)
  };
}

/**
 * Return those of some ranks' files that are looked for.
 *
 * @param filter - Numbers by their first digits, ranges as `0-7`, worlds as `w1`, with commas or spaces between.
 */
export function filterRanks(ranks: readonly string[], filter: string): string[] {
  const terms = filter
    .toLowerCase()
    .split(/[\s,]+/)
    .filter(Boolean);
  return ranks.filter(name => terms.length === 0 || terms.some(term => matchesTerm(name, term)));
}

function matchesTerm(name: string, term: string): boolean {
  const rank = name.replace('rank-', '');
  const number = rank.replace(/^.*\./, '');
  const range = /^(\d+)-(\d+)$/.exec(term);
  if (range) {
    return Number(range[1]) <= Number(number) && Number(number) <= Number(range[2]);
  }
  return rank.startsWith(term) || number.startsWith(term) || name === term;
}

function isRank(name: string): boolean {
  return name.startsWith('rank-');
}

// The kind, the world, the number; those of the first world have none.
function sortKey(name: string): number[] {
  const [, kind = name, world, number] = /^([a-z]+)-(?:w(\d+)\.)?(\d+)$/.exec(name) ?? [];
  const place = KINDS.indexOf(kind);
  return [place < 0 ? KINDS.length : place, Number(world ?? 0), Number(number ?? 0)];
}

function compare(one: number[] = [], other: number[] = []): number {
  const at = one.findIndex((value, place) => value !== other[place]);
  return at < 0 ? 0 : (one[at] ?? 0) - (other[at] ?? 0);
}
