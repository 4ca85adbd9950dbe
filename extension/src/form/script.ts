/** The script of a job, and what its scheduler says of it. */
export interface IScript {
  script: string;
  /** Who says it; empty: nobody was asked. */
  scheduler: string;
  verdict: string;
}

/** Take the scheduler's answer from the last comment of a dry run, `# slurm says: ...`. */
export function scriptOf(told: string): IScript {
  const last = [...told.matchAll(/^# (\S+) says: /gm)].at(-1);
  if (!last) {
    return { script: told, scheduler: '', verdict: '' };
  }
  return {
    script: told.slice(0, last.index),
    scheduler: last[1] ?? '',
    verdict: told.slice(last.index + last[0].length).trim()
  };
}
