/** What the server tells about a start that is not asked for yet. */

import type { Api } from '../api';
import type { IStart, Options } from '../contract';

/** An option of `workbench start`. */
export interface IField {
  name: string;
  label: string;
  help: string;
  kind: 'number' | 'text' | 'flag' | 'list' | 'choice';
  choices: string[];
  /** Whether only batch schedulers can be asked for it. */
  batch_only: boolean;
}

/** What can start a cluster. */
export interface IScheduler {
  name: string;
  there: boolean;
  batch: boolean;
}

/** What a form has to know. */
export interface IForm {
  schedulers: IScheduler[];
  default_scheduler: string;
  fields: IField[];
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
  /** How it is installed there. */
  hint: string | null;
}

/** What would come of options. */
export interface ICheck {
  /** By the names of fields; nameless: of no field. */
  errors: Record<string, string>;
  script: string | null;
}

/** The questions of a form. */
export interface IFormSource {
  form: () => Promise<IForm>;
  kernels: () => Promise<IKernel[]>;
  check: (options: Options, signal?: AbortSignal) => Promise<ICheck>;
  start: (options: Options) => Promise<IStart>;
  dismiss: (start: string) => Promise<void>;
}

/** Return what answers the questions of a form. */
export function sourceOf(api: Api): IFormSource {
  return {
    form: () => api.request<IForm>('GET', ['form']),
    kernels: async () => (await api.request<{ kernels: IKernel[] }>('GET', ['kernels'])).kernels,
    check: (options, signal) => api.request<ICheck>('POST', ['check'], options, {}, signal),
    start: options => api.start(options),
    dismiss: start => api.dismiss(start)
  };
}
