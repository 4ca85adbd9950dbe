import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { FormModel } from './formModel';

/** What all components of the form use. */
export interface IFormContext {
  model: FormModel;
  trans: TranslationBundle;
}

export const FormContext = React.createContext<IFormContext | null>(null);

/** Return the context of the form. */
export function useForm(): IFormContext {
  const form = React.useContext(FormContext);
  if (form === null) {
    throw new Error('components of the form need the context of the form');
  }
  return form;
}
