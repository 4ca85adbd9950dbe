import { Signal } from '@lumino/signaling';

import type { IFormSource } from '../../src/cluster-form/formModel';
import type {
  ICheck,
  ICluster,
  IField,
  IFormDescription,
  IKernel,
  IStart,
  Options
} from '../../src/contract';
import type { ConnectionState, IClusterLookup } from '../../src/model/clusters';

function field(
  name: string,
  kind: IField['kind'],
  group: string,
  batch_only = false,
  choices: string[] = []
): IField {
  return { name, label: name, help: '', kind, choices, batch_only, group };
}

/** Return what a form has to know where there is Slurm. */
export function form(): IFormDescription {
  return {
    schedulers: [
      { name: 'local', there: true, batch: false },
      { name: 'slurm', there: true, batch: true },
      { name: 'pbs', there: false, batch: true }
    ],
    default_scheduler: 'slurm',
    cores: 8,
    directory: '/srv/somebody',
    groups: ['what to start', 'scheduler', 'environment of the ranks', 'network'],
    fields: [
      field('ranks', 'number', 'what to start'),
      field('name', 'text', 'what to start'),
      field('scheduler', 'choice', 'scheduler', false, ['auto', 'local', 'slurm', 'pbs']),
      field('walltime', 'text', 'scheduler', true),
      field('extra', 'list', 'scheduler', true),
      field('mpi', 'choice', 'environment of the ranks', false, ['openmpi', 'mpich']),
      field('protocol', 'choice', 'network', false, ['mpi', 'tcp'])
    ]
  };
}

/** Return a start that has just been asked for. */
export function start(facts: Partial<IStart> = {}): IStart {
  return { id: 's', name: null, state: 'starting', message: '', log: '', since: 100, ...facts };
}

/** The server of a form: what it answers can be set, and what it was asked is kept. */
export class FakeFormServer implements IFormSource {
  readonly checked: Options[] = [];
  readonly started: Options[] = [];
  readonly dismissed: string[] = [];
  description: IFormDescription | Error = form();
  known: IKernel[] | Error = [];
  verdict: ICheck | Error = { errors: {}, script: 'exec it' };
  answer: IStart | Error = start();
  dismissal: undefined | Error | Promise<void> = undefined;

  readonly form = () => respond(this.description);
  readonly kernels = () => respond(this.known);

  readonly check = (options: Options) => {
    this.checked.push(options);
    return respond(this.verdict);
  };

  readonly start = (options: Options) => {
    this.started.push(options);
    return respond(this.answer);
  };

  readonly dismiss = (id: string) => {
    this.dismissed.push(id);
    return respond(this.dismissal);
  };
}

function respond<T>(value: T | Error | Promise<T>): Promise<T> {
  return value instanceof Error ? Promise.reject(value) : Promise.resolve(value);
}

/** What is known of clusters. */
export class FakeClusters implements IClusterLookup {
  starts: IStart[] = [];
  clusters: ICluster[] = [];
  connectionState: ConnectionState = 'live';
  readonly changed = new Signal<this, void>(this);

  readonly findStart = (id: string) => this.starts.find(start => start.id === id);
  readonly cluster = (name: string) => this.clusters.find(cluster => cluster.name === name);
  readonly hasEnded = (name: string) => this.connectionState === 'live' && !this.cluster(name);

  update(facts: {
    starts?: IStart[];
    clusters?: ICluster[];
    connectionState?: ConnectionState;
  }): void {
    Object.assign(this, facts);
    this.changed.emit();
  }
}
