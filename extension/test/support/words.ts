import type { TranslationBundle } from '@jupyterlab/translation';

/** The words as they stand in the source. */
export const trans = {
  __: (text: string, ...values: unknown[]) =>
    text.replace(/%(\d)/g, (_, at: string) => String(values[Number(at) - 1]))
} as TranslationBundle;
