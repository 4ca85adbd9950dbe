import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { FormModel } from './formModel';

/** What all parts of the form have at hand. */
export interface IFormContext {
  model: FormModel;
  trans: TranslationBundle;
}

export const FormContext = React.createContext<IFormContext | null>(null);

/** Return what the form has at hand. */
export function useForm(): IFormContext {
  const form = React.useContext(FormContext);
  if (form === null) {
    throw new Error('parts of the form are used in the form only');
  }
  return form;
}
