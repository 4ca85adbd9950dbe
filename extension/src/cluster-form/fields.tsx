import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton } from '../components';
import type { IField, IFormDescription } from '../contract';
import { translate } from '../format';
import type { FormModel } from './formModel';
import { KERNEL } from './values';

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

/** The properties of each control. */
export interface IControlProps {
  id: string;
  'aria-invalid': boolean;
  'aria-describedby': string;
}

/** A label, its control, a help text, and an error. */
export function LabeledControl(props: {
  name: string;
  label: string;
  help?: string;
  /** The error, if it is not that of the server for this name. */
  error?: React.ReactNode;
  isWide?: boolean;
  children: (control: IControlProps) => React.ReactNode;
}): React.JSX.Element {
  const { model } = useForm();
  const { name, label, help, isWide, children } = props;
  const error = props.error ?? model.errors[name];
  const id = `wb-new-${name}`;
  const describedBy = [...(help ? [`${id}-help`] : []), ...(error ? [`${id}-error`] : [])];
  return (
    <div className={`wb-Field${isWide ? ' wb-mod-wide' : ''}`} data-field={name}>
      <label htmlFor={id}>{label}</label>
      {children({
        id,
        'aria-invalid': Boolean(error),
        'aria-describedby': describedBy.join(' ')
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

/** An option of a start. */
export function OptionField({ field }: { field: IField }): React.JSX.Element {
  const { trans } = useForm();
  const { name, label, help, kind } = field;
  return (
    <LabeledControl
      name={name}
      label={translate(label, trans)}
      help={translate(help, trans)}
      isWide={kind === 'list'}
    >
      {control => <OptionInput field={field} control={control} />}
    </LabeledControl>
  );
}

function OptionInput({
  field,
  control
}: {
  field: IField;
  control: IControlProps;
}): React.JSX.Element {
  const { model, trans } = useForm();
  const { name, kind, choices } = field;
  const value = model.values[name];
  const text = {
    ...control,
    value: value ?? '',
    onChange: (
      event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>
    ) => {
      model.set(name, event.target.value);
    }
  };
  switch (kind) {
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

/** The scheduler: only those that were found can be selected. */
export function SchedulerField({
  form,
  field
}: {
  form: IFormDescription;
  field: IField;
}): React.JSX.Element {
  const { model, trans } = useForm();
  const first = React.useRef<HTMLSelectElement>(null);
  React.useEffect(() => {
    // the tab was activated before there was anything in it
    if (document.activeElement?.closest('.wb-New')?.contains(first.current)) {
      first.current?.focus();
    }
  }, []);
  return (
    <LabeledControl
      name={field.name}
      label={translate(field.label, trans)}
      help={trans.__('what starts the job')}
    >
      {control => (
        <select
          {...control}
          ref={first}
          value={String(model.values[field.name])}
          onChange={event => {
            model.set(field.name, event.target.value);
          }}
        >
          {form.schedulers.map(({ name, there }) => (
            <option key={name} value={name} disabled={!there}>
              {there ? name : trans.__('%1 (not found)', name)}
            </option>
          ))}
        </select>
      )}
    </LabeledControl>
  );
}

/** The environment that the ranks run in: that of a kernel, or the server's. */
export function KernelField(): React.JSX.Element {
  const { model, trans } = useForm();
  const { kernels, unusableKernel, unlistedKernel } = model;
  const error = unusableKernel?.installable ? (
    <>
      <p>{trans.__('This environment does not have the workbench. Install it:')}</p>
      <div className="wb-Hint">
        <code>{unusableKernel.hint}</code>
        <CopyButton text={unusableKernel.hint ?? ''} trans={trans} />
      </div>
    </>
  ) : (
    unusableKernel &&
    trans.__('The workbench cannot be used in this environment: %1', unusableKernel.hint ?? '')
  );
  return (
    <LabeledControl
      name={KERNEL}
      label={trans.__('Environment')}
      help={trans.__('kernel whose Python the ranks run')}
      error={error}
      isWide
    >
      {control => (
        <select
          {...control}
          value={String(model.values[KERNEL])}
          disabled={kernels === null}
          onChange={event => {
            model.set(KERNEL, event.target.value);
          }}
        >
          <option value="">
            {kernels === null
              ? trans.__('Loading kernels…')
              : trans.__('same as the Jupyter server')}
          </option>
          {unlistedKernel !== '' && <option value={unlistedKernel}>{unlistedKernel}</option>}
          {kernels?.map(({ name, display_name, version }) => (
            <option key={name} value={name}>
              {version === null
                ? trans.__('%1: without the workbench', display_name)
                : trans.__('%1: workbench %2', display_name, version)}
            </option>
          ))}
        </select>
      )}
    </LabeledControl>
  );
}
