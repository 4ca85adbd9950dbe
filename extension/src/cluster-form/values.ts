import type { IField, IFormDescription, Options } from '../contract';

/** The values by the names of fields; items of lists are lines. */
export type Values = Readonly<Record<string, string>>;

/** Fields beside those of the server. */
export const KERNEL = 'kernel';
export const DIRECTORY = 'directory';

const SCHEDULER = 'scheduler';
const RANKS = 'ranks';
const NAME = 'name';
// Fields that are always visible, in the order of the form; the kernel comes last.
const MAIN_FIELDS = [
  SCHEDULER,
  NAME,
  RANKS,
  'nodes',
  'threads',
  'memory',
  'walltime',
  'queue',
  'account',
  'preset'
];

/** The group of the kernel and of the folder. */
const ENVIRONMENT = 'environment of the ranks';

/** A group of fields. */
export interface IFieldGroup {
  name: string;
  fields: IField[];
  /** Whether the group has the field that is not an option: the kernel, or the folder. */
  isEnvironment: boolean;
}

/** Return fields in their groups, in the order of the first field of each; one group is the environment. */
export function groupFields(fields: readonly IField[]): IFieldGroup[] {
  const names = new Set([...fields.map(field => field.group), ENVIRONMENT]);
  return [...names].map(name => ({
    name,
    fields: fields.filter(field => field.group === name),
    isEnvironment: name === ENVIRONMENT
  }));
}

/** Return whether the scheduler that is chosen starts batch jobs. */
export function isBatch(form: IFormDescription, values: Values): boolean {
  return form.schedulers.some(scheduler => scheduler.name === values[SCHEDULER] && scheduler.batch);
}

/** Return the fields that are always visible, and those behind a click, as far as they apply. */
export function visibleFields(
  form: IFormDescription,
  values: Values
): { first: IField[]; more: IField[] } {
  const relevant = form.fields.filter(field => !field.batch_only || isBatch(form, values));
  return {
    first: MAIN_FIELDS.flatMap(name => relevant.filter(field => field.name === name)),
    more: form.groups.flatMap(group =>
      relevant.filter(field => field.group === group && !MAIN_FIELDS.includes(field.name))
    )
  };
}

/** Return the initial values of a form: the remembered values, as far as they are still valid. */
export function initialValues(form: IFormDescription, remembered: unknown): Values {
  const old = typeof remembered === 'object' ? { ...remembered } : {};
  const known = new Map<string, unknown>(Object.entries(old));
  const values: Record<string, string> = {};
  for (const { name, kind, choices } of form.fields) {
    // batch schedulers want a number of ranks; that of cores is one that every other start has
    const otherwise = name === RANKS ? String(form.cores) : '';
    const value = known.get(name);
    // a name is given once
    const isPossible = typeof value === 'string' && name !== NAME;
    const isChoice = kind !== 'choice' || choices.includes(String(value));
    values[name] = isPossible && isChoice ? value : otherwise;
  }
  for (const name of [KERNEL, DIRECTORY]) {
    const value = known.get(name);
    values[name] = typeof value === 'string' ? value : '';
  }
  const isThere = form.schedulers.some(
    scheduler => scheduler.there && scheduler.name === values[SCHEDULER]
  );
  values[SCHEDULER] = isThere ? (values[SCHEDULER] ?? '') : form.default_scheduler;
  return values;
}

/** Return the options of a start: the values of visible fields that are not empty. */
export function startOptions(form: IFormDescription, values: Values): Options {
  const { first, more } = visibleFields(form, values);
  const options: Options = {};
  for (const field of [...first, ...more]) {
    const value = optionValue(field, values[field.name]);
    if (value !== null) {
      options[field.name] = value;
    }
  }
  for (const name of [KERNEL, DIRECTORY]) {
    const value = (values[name] ?? '').trim();
    if (value !== '') {
      options[name] = value;
    }
  }
  return options;
}

function optionValue({ kind }: IField, value = ''): Options[string] {
  const text = value.trim();
  if (text === '') {
    return null;
  }
  if (kind === 'list') {
    return text.split('\n').flatMap(line => line.trim() || []);
  }
  // the server reports what is no number
  return kind === 'number' && /^[+-]?\d{1,15}$/.test(text) ? Number(text) : text;
}

/** The script of a job, and the verdict of its scheduler. */
export interface IScript {
  script: string;
  /** The scheduler of the verdict; empty: there is no verdict. */
  scheduler: string;
  verdict: string;
}

/** Parse the output of a dry run, whose last comment is the verdict: `# slurm reports: ...`. */
export function parseScript(output: string): IScript {
  const last = [...output.matchAll(/^# (\S+) reports: /gm)].at(-1);
  if (!last) {
    return { script: output, scheduler: '', verdict: '' };
  }
  return {
    script: output.slice(0, last.index),
    scheduler: last[1] ?? '',
    verdict: output.slice(last.index + last[0].length).trim()
  };
}
