import * as React from 'react';

import { useDesk } from './hooks';

/** What each control has, whatever it looks like. */
export interface IControl {
  id: string;
  'aria-invalid': boolean;
  'aria-describedby': string;
}

/** A label, its control, a line about it, and what is wrong with it. */
export function Control(props: {
  name: string;
  label: string;
  help?: string;
  /** What is wrong, if it is not what the server says of this name. */
  error?: React.ReactNode;
  isWide?: boolean;
  children: (control: IControl) => React.ReactNode;
}): React.JSX.Element {
  const { model } = useDesk();
  const { name, label, help, isWide, children } = props;
  const error = props.error ?? model.errors[name];
  const id = `wb-new-${name}`;
  const described = [...(help ? [`${id}-help`] : []), ...(error ? [`${id}-error`] : [])];
  return (
    <div className={`wb-Field${isWide ? ' wb-mod-wide' : ''}`} data-field={name}>
      <label htmlFor={id}>{label}</label>
      {children({
        id,
        'aria-invalid': Boolean(error),
        'aria-describedby': described.join(' ')
      })}
      {help && (
        <p className="wb-Help" id={`${id}-help`}>
          {help}
        </p>
      )}
      <div className="wb-Error" id={`${id}-error`} aria-live="polite">
        {error}
      </div>
    </div>
  );
}
