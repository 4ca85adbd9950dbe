/** What the server extension sends and receives; times are seconds since the epoch. */

/** A cluster, from its record and its scheduler. */
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

/** A start that this server was asked for. */
export interface IStart {
  id: string;
  name: string | null;
  state: 'starting' | 'ready' | 'failed';
  message: string;
  log: string;
  since: number;
}

/** A record that cannot be read; without a name: the registry itself. */
export interface IBrokenRecord {
  name: string;
  error: string;
}

/** A cluster that has ended. */
export interface IEnded {
  id: string;
  name: string;
  /** `stopped` by the user; `ended` in order without the user (idle, walltime); `failed`. */
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

/** The whole state. */
export interface IState {
  version: string;
  clusters: ICluster[];
  broken: IBrokenRecord[];
  starts: IStart[];
  /** The last one first. */
  ended: IEnded[];
  time: number;
}

/** The clusters that have changed; all else is complete. */
export interface IChange {
  clusters: ICluster[];
  gone: string[];
  broken: IBrokenRecord[];
  starts: IStart[];
  /** Only if there is another one. */
  ended?: IEnded[];
  time: number;
}

/** A message of the websocket. */
export type Message =
  | ({ type: 'state' } & IState)
  | ({ type: 'changed' } & IChange)
  | { type: 'pulse'; pulses: Record<string, IPulse>; time: number };

/** Options of a start by their names; null or an empty text stands for the default. */
export type Options = Record<string, string | number | boolean | string[] | null>;

/** An option of `workbench start`. */
export interface IField {
  name: string;
  label: string;
  help: string;
  kind: 'number' | 'text' | 'list' | 'choice';
  choices: string[];
  /** Whether only batch schedulers can be asked for it. */
  batch_only: boolean;
  /** The group of the option in the help of the command. */
  group: string;
}

/** What can start a cluster. */
export interface IScheduler {
  name: string;
  there: boolean;
  batch: boolean;
}

/** The description of a form. */
export interface IFormDescription {
  schedulers: IScheduler[];
  default_scheduler: string;
  fields: IField[];
  /** The groups of the fields in the order of the help. */
  groups: string[];
  /** Of the server's host. */
  cores: number;
  /** Where the server's files are. */
  directory: string;
}

/** A kernel that runs Python. */
export interface IKernel {
  name: string;
  display_name: string;
  /** Of the workbench there; null: it has none. */
  version: string | null;
  /** What to do about that. */
  hint: string | null;
  /** Whether the hint is the command that installs the workbench there. */
  installable: boolean;
}

/** What a start with some options would do. */
export interface ICheck {
  /** By the names of fields; nameless: of no field. */
  errors: Record<string, string>;
  script: string | null;
}

/** A log file. */
export interface ILogFile {
  /** As `head`, `job`, `world-0` or `rank-3`. */
  name: string;
  /** In bytes. */
  size: number;
}

/** A part of a log file; all numbers are bytes. */
export interface ILogPart {
  text: string;
  /** Where what follows begins. */
  next: number;
  size: number;
}
