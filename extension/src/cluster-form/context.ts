import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { FormModel } from './formModel';

/** What all parts of the form have at hand. */
export interface IDesk {
  model: FormModel;
  trans: TranslationBundle;
}

export const Desk = React.createContext<IDesk | null>(null);

/** Return what the form has at hand. */
export function useDesk(): IDesk {
  const desk = React.useContext(Desk);
  if (desk === null) {
    throw new Error('parts of the form are used in the form only');
  }
  return desk;
}
