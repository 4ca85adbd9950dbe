import type { TranslationBundle } from '@jupyterlab/translation';

import type { LogsModel } from './logsModel';

/** Return what is said above a log; empty: it speaks for itself. */
export function noteOf(
  { tail, isGone, isOver }: Pick<LogsModel, 'tail' | 'isGone' | 'isOver'>,
  trans: TranslationBundle
): string {
  const isEmpty = tail.size === 0;
  if (isGone) {
    return isEmpty
      ? trans.__('The cluster has ended, and its logs have been removed.')
      : trans.__('The cluster has ended, and its logs have been removed; this was read before.');
  }
  if (isOver) {
    return isEmpty
      ? trans.__('The cluster has ended, and has left nothing in it.')
      : trans.__('The cluster has ended; this is what it left.');
  }
  return isEmpty ? trans.__('There is nothing in it yet.') : '';
}
