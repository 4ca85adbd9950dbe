import type { TranslationBundle } from '@jupyterlab/translation';

/** The words as they stand in the source. */
export const trans = {
  __: filled,
  _n: (one: string, many: string, count: number, ...values: unknown[]) =>
    filled(count === 1 ? one : many, count, ...values)
} as TranslationBundle;

function filled(text: string, ...values: unknown[]): string {
  return text.replace(/%(\d)/g, (_, at: string) => String(values[Number(at) - 1]));
}
