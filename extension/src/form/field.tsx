import * as React from 'react';

import type { IField } from './contract';
import { Control, type IControl } from './control';
import { useDesk } from './hooks';

/** An option of a start. */
export function Field({ field }: { field: IField }): React.JSX.Element {
  const { name, label, help, kind } = field;
  return (
    <Control name={name} label={label} help={help} isWide={kind === 'list'}>
      {control => <Input field={field} control={control} />}
    </Control>
  );
}

function Input({ field, control }: { field: IField; control: IControl }): React.JSX.Element {
  const { model, trans } = useDesk();
  const { name, kind, choices } = field;
  const value = model.values[name];
  const text = {
    ...control,
    value: String(value ?? ''),
    onChange: (
      event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>
    ) => {
      model.set(name, event.target.value);
    }
  };
  switch (kind) {
    case 'flag':
      return (
        <input
          {...control}
          type="checkbox"
          checked={value === true}
          onChange={event => {
            model.set(name, event.target.checked);
          }}
        />
      );
    case 'choice':
      return (
        <select {...text} disabled={choices.length === 0}>
          <option value="">
            {choices.length > 0 ? trans.__('default') : trans.__('there is none')}
          </option>
          {choices.map(choice => (
            <option key={choice} value={choice}>
              {choice}
            </option>
          ))}
        </select>
      );
    case 'list':
      return (
        <textarea {...text} rows={2} placeholder={trans.__('one per line')} spellCheck={false} />
      );
    default:
      return (
        <input
          {...text}
          type="text"
          inputMode={kind === 'number' ? 'numeric' : 'text'}
          autoComplete="off"
          spellCheck={false}
        />
      );
  }
}
