/** What the server extension tells and takes; times are seconds since the epoch. */

/** A cluster, as its record and its scheduler tell. */
export interface ICluster {
  id: string;
  name: string;
  state: string;
  message: string;
  /** Ranks that are there, of those that it has. */
  up: number;
  ranks: number;
  threads: number;
  scheduler: string;
  host: string;
  nodes: number | null;
  jobs: string[];
  created: number;
  /** When the scheduler ends its job. */
  ends: number | null;
  /** Why it waits in a queue, and until when the scheduler thinks. */
  reason: string | null;
  expected: number | null;
  /** Seconds without clients and tasks after which it ends. */
  idle_timeout: number;
  /** What this server does to it. */
  busy: 'scaling' | 'restarting' | 'stopping' | null;
  /** Why the last thing that this server did to it has failed. */
  error: string | null;
}

/** A start that somebody has asked this server for. */
export interface IStart {
  id: string;
  name: string | null;
  state: 'starting' | 'ready' | 'failed';
  message: string;
  log: string;
  since: number;
}

/** A record that cannot be used; nameless: the registry itself. */
export interface IBroken {
  name: string;
  error: string;
}

/** A cluster that has ended. */
export interface IEnded {
  id: string;
  name: string;
  /** By its user, in order without him (idle, walltime), or because something has failed. */
  state: 'stopped' | 'ended' | 'failed';
  reason: string;
  when: number;
  created: number;
  ranks: number;
  /** The folder of its logs; null: they have been removed. */
  logs: string | null;
}

/** What a cluster does at the moment. */
export interface IPulse {
  /** Per cent of a core, mean over the ranks. */
  cpu: number;
  /** Bytes, sum over the ranks. */
  memory: number;
  clients: number;
  /** Seconds without clients and tasks. */
  idle: number | null;
}

/** How everything stands. */
export interface IState {
  version: string;
  clusters: ICluster[];
  broken: IBroken[];
  starts: IStart[];
  /** The last one first. */
  ended: IEnded[];
  time: number;
}

/** What has changed of the clusters; the rest is whole. */
export interface IChange {
  clusters: ICluster[];
  gone: string[];
  broken: IBroken[];
  starts: IStart[];
  /** Only if there is another one. */
  ended?: IEnded[];
  time: number;
}

/** What comes by the websocket. */
export type Message =
  | ({ type: 'state' } & IState)
  | ({ type: 'changed' } & IChange)
  | { type: 'pulse'; pulses: Record<string, IPulse>; time: number };

/** Options of a start by their names; null or an empty text stands for the default. */
export type Options = Record<string, string | number | boolean | string[] | null>;
