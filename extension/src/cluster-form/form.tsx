import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton, Preformatted, useSignal } from '../components';
import type { ICluster, IField, IFormDescription } from '../contract';
import { formatGroup, formatState } from '../format';
import { notifyError } from '../notify';
import {
  FormContext,
  type IFormContext,
  KernelField,
  LabeledControl,
  OptionField,
  SchedulerField,
  useForm
} from './fields';
import { DIRECTORY, groupFields, KERNEL, parseScript, visibleFields } from './values';

/** The form for a new cluster, with the script of its job beside it. */
export function NewClusterForm({ context }: { context: IFormContext }): React.JSX.Element {
  const { model, trans } = context;
  useSignal(model.changed);
  const { form } = model;
  return (
    <FormContext.Provider value={context}>
      {form === null ? (
        <div className="wb-Form">
          <FailureAlert />
          {model.isLoading ? (
            <p role="status">{trans.__('Loading options…')}</p>
          ) : (
            <button type="button" className="wb-TextButton" onClick={() => void model.reload()}>
              {trans.__('Try again')}
            </button>
          )}
        </div>
      ) : (
        <Form form={form} />
      )}
    </FormContext.Provider>
  );
}

function Form({ form }: { form: IFormDescription }): React.JSX.Element {
  const { model, trans } = useForm();
  const element = React.useRef<HTMLFormElement>(null);
  const [attempts, countAttempt] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    focusFirstError(element.current);
  }, [attempts]);
  return (
    <form
      ref={element}
      noValidate
      onSubmit={event => {
        event.preventDefault();
        // a notification reports the error if the tab was closed meanwhile
        model.start().then(countAttempt, notifyError(trans.__('New cluster'), trans));
      }}
    >
      <div className="wb-Form">
        <GeneralErrors form={form} />
        <FailureAlert />
        <fieldset aria-disabled={model.isStarting}>
          <Fields form={form} />
        </fieldset>
      </div>
      <ScriptPane />
      <footer>
        <button
          type="submit"
          className="wb-TextButton wb-mod-accept"
          aria-disabled={!model.canStart}
        >
          {trans.__('Start')}
        </button>
        <StartProgress />
      </footer>
    </form>
  );
}

/** Focus the first field with a wrong value; the details that hide it open. */
function focusFirstError(form: HTMLFormElement | null): void {
  const field = form?.querySelector<HTMLElement>('[aria-invalid="true"]');
  field?.closest('details')?.setAttribute('open', '');
  field?.focus();
}

function Fields({ form }: { form: IFormDescription }): React.JSX.Element {
  const { model, trans } = useForm();
  const { first, more } = visibleFields(form, model.values);
  const hasError = [...more.map(field => field.name), DIRECTORY].some(name => name in model.errors);
  const [isOpen, setOpen] = React.useState(false);
  React.useEffect(() => {
    if (hasError) {
      setOpen(true);
    }
  }, [hasError]);
  return (
    <>
      <FieldGroups form={form} fields={first} environment={<KernelField />} />
      <details
        open={isOpen}
        onToggle={event => {
          setOpen(event.currentTarget.open);
        }}
      >
        <summary>{trans.__('More options')}</summary>
        <FieldGroups form={form} fields={more} environment={<DirectoryField form={form} />} />
      </details>
    </>
  );
}

/** Fields under the titles of their groups. */
function FieldGroups(props: {
  form: IFormDescription;
  fields: readonly IField[];
  /** The field of the environment that is not an option. */
  environment: React.ReactNode;
}): React.JSX.Element {
  const { trans } = useForm();
  return (
    <>
      {groupFields(props.fields).map(({ name, fields, isEnvironment }) => (
        <fieldset key={name} className="wb-Group">
          <legend>{formatGroup(name, trans)}</legend>
          <div className="wb-Fields">
            {fields.map(field =>
              field.name === 'scheduler' ? (
                <SchedulerField key={field.name} form={props.form} field={field} />
              ) : (
                <OptionField key={field.name} field={field} />
              )
            )}
            {isEnvironment && props.environment}
          </div>
        </fieldset>
      ))}
    </>
  );
}

function DirectoryField({ form }: { form: IFormDescription }): React.JSX.Element {
  const { model, trans } = useForm();
  return (
    <LabeledControl
      name={DIRECTORY}
      label={trans.__('Folder')}
      help={trans.__('working directory; a folder in %1', form.directory)}
      isWide
    >
      {control => (
        <input
          {...control}
          type="text"
          value={String(model.values[DIRECTORY])}
          autoComplete="off"
          spellCheck={false}
          onChange={event => {
            model.set(DIRECTORY, event.target.value);
          }}
        />
      )}
    </LabeledControl>
  );
}

/** Errors that belong to no visible field. */
export function GeneralErrors({ form }: { form: IFormDescription }): React.JSX.Element | null {
  const { model } = useForm();
  const { first, more } = visibleFields(form, model.values);
  const visible = [...first, ...more].map(field => field.name).concat(KERNEL, DIRECTORY);
  const others = Object.entries(model.errors).filter(([name]) => !visible.includes(name));
  return others.length === 0 ? null : (
    <Alert>
      {others.map(([name, error]) => (
        <p key={name}>{error}</p>
      ))}
    </Alert>
  );
}

/** Why a request or the start failed. */
export function FailureAlert(): React.JSX.Element | null {
  const { model, trans } = useForm();
  const { failure } = model;
  return failure === null ? null : (
    <Alert>
      <p>{failure.message}</p>
      {failure.log !== '' && (
        <Preformatted text={failure.log} label={trans.__('The end of the log')} />
      )}
    </Alert>
  );
}

function Alert({ children }: { children: React.ReactNode }): React.JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => {
    // the alert is above the form, which may be scrolled
    box.current?.scrollIntoView({ block: 'nearest' });
  }, []);
  return (
    <div className="wb-Trouble" role="alert" ref={box}>
      {children}
    </div>
  );
}

/** The progress of the accepted start, and the button that cancels it. */
export function StartProgress(): React.JSX.Element {
  const { model, trans } = useForm();
  const isUnderWay = model.startId !== '';
  return (
    <>
      {isUnderWay && (
        <button
          type="button"
          className="wb-TextButton"
          onClick={() => {
            void model.cancel();
          }}
        >
          {trans.__('Cancel the start')}
        </button>
      )}
      <div role="status">
        {isUnderWay && (
          <>
            <p>{formatStage(model.cluster, trans)}</p>
            <p className="wb-Help">
              {trans.__(
                'You can close this tab; the start continues, and the panel shows its progress.'
              )}
            </p>
          </>
        )}
      </div>
    </>
  );
}

function formatStage(cluster: ICluster | undefined, trans: TranslationBundle): string {
  if (cluster === undefined) {
    return trans.__('Starting…');
  }
  const { name, reason, up, ranks } = cluster;
  return [
    trans.__('Cluster %1: %2', name, formatState(cluster, trans)),
    ...(reason === null ? [] : [trans.__('reason: %1', reason)]),
    ...(up > 0 ? [trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks, up)] : [])
  ].join(' · ');
}

/** The script of the job as it would be submitted now, and the verdict of the scheduler. */
export function ScriptPane(): React.JSX.Element {
  const { model, trans } = useForm();
  const { lastScript } = model;
  const isStale = model.isChecking || model.script === null;
  const { script, scheduler, verdict } = parseScript(lastScript);
  return (
    <section className="wb-Script" aria-label={trans.__('Job script')} aria-busy={model.isChecking}>
      <header>
        <h3>{trans.__('Job script')}</h3>
        <span className="wb-Help">
          {model.isChecking
            ? trans.__('checking…')
            : isStale && lastScript !== '' && trans.__('out of date')}
        </span>
        {lastScript !== '' && (
          <CopyButton text={lastScript} trans={trans} label={trans.__('Copy the job script')} />
        )}
      </header>
      {lastScript === '' ? (
        <p className="wb-Help">
          {model.isChecking ? '' : trans.__('The script appears when the form is complete.')}
        </p>
      ) : (
        <Preformatted text={script} label={trans.__('Job script')} isStale={isStale} />
      )}
      {verdict !== '' && (
        <p className={`wb-Verdict${isStale ? ' wb-mod-old' : ''}`} role="status">
          <strong>{trans.__('%1 reports:', scheduler)}</strong> {verdict}
        </p>
      )}
    </section>
  );
}
