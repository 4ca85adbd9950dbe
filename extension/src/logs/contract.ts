/** What the server tells of logs. */

import type { Api } from '../api';

/** A log file. */
export interface IFile {
  /** As `head`, `job`, `world-0`, `rank-3` or `rank-w1.3`. */
  name: string;
  /** In bytes. */
  size: number;
}

/** A part of a log file; all numbers are bytes. */
export interface IPart {
  text: string;
  /** Where what follows begins. */
  next: number;
  size: number;
}

/** Where logs come from. */
export interface ILogSource {
  files: () => Promise<IFile[]>;
  /** A part of at most 256 KiB, as it can be shown; `from` below zero: so many bytes before the end. */
  part: (file: string, from: number) => Promise<IPart>;
  /** Where the browser finds all of a file, as it is. */
  address: (file: string) => string;
}

/**
 * Return where the logs of a cluster come from.
 *
 * @param id - Its identity, where its name may be another cluster's; empty: the cluster that has the name, or had it last.
 */
export function logsOf(api: Api, cluster: string, id = ''): ILogSource {
  const path = ['clusters', cluster, 'logs'];
  const which: Record<string, string> = id === '' ? {} : { id };
  return {
    files: async () => (await api.request<{ files: IFile[] }>('GET', path, undefined, which)).files,
    part: (file, from) =>
      api.request<IPart>('GET', [...path, file], undefined, { from: String(from), ...which }),
    address: file => api.address([...path, file, 'download'], which)
  };
}
