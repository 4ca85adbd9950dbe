import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton, useSignal, Verbatim } from '../components';
import type { ICluster, IForm } from '../contract';
import { stateOf } from '../format';
import { failed } from '../notify';
import { Desk, type IDesk, useDesk } from './context';
import { Control, Field, Kernel, Scheduler } from './fields';
import { DIRECTORY, fieldsOf, KERNEL, scriptOf } from './values';

/** The form for a new cluster, with the script of its job beside it. */
export function NewCluster({ desk }: { desk: IDesk }): React.JSX.Element {
  const { model, trans } = desk;
  useSignal(model.changed);
  const { form } = model;
  return (
    <Desk.Provider value={desk}>
      {form === null ? (
        <div className="wb-Form">
          {model.failure ? (
            <Failure />
          ) : (
            <p role="status">{trans.__('Asking the server for the form…')}</p>
          )}
        </div>
      ) : (
        <Form form={form} />
      )}
    </Desk.Provider>
  );
}

function Form({ form }: { form: IForm }): React.JSX.Element {
  const { model, trans } = useDesk();
  const element = React.useRef<HTMLFormElement>(null);
  const [tries, countTry] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    showWrong(element.current);
  }, [tries]);
  return (
    <form
      ref={element}
      noValidate
      onSubmit={event => {
        event.preventDefault();
        // who has closed the tab meanwhile is told elsewhere
        model.start().then(countTry, failed(trans.__('New cluster'), trans));
      }}
    >
      <div className="wb-Form">
        <General form={form} />
        <Failure />
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
        <Progress />
      </footer>
    </form>
  );
}

/** Lead to the first field with a wrong value, which may be one behind a click. */
function showWrong(form: HTMLFormElement | null): void {
  const field = form?.querySelector<HTMLElement>('[aria-invalid="true"]');
  field?.closest('details')?.setAttribute('open', '');
  field?.focus();
}

function Fields({ form }: { form: IForm }): React.JSX.Element {
  const { model, trans } = useDesk();
  const { first, more } = fieldsOf(form, model.values);
  const isWrong = [...more.map(its => its.name), DIRECTORY].some(name => name in model.errors);
  const [isOpen, setOpen] = React.useState(false);
  React.useEffect(() => {
    if (isWrong) {
      setOpen(true);
    }
  }, [isWrong]);
  return (
    <>
      <div className="wb-Fields">
        {first.map(field =>
          field.name === 'scheduler' ? (
            <Scheduler key={field.name} form={form} field={field} />
          ) : (
            <Field key={field.name} field={field} />
          )
        )}
        <Kernel />
      </div>
      <details
        open={isOpen}
        onToggle={event => {
          setOpen(event.currentTarget.open);
        }}
      >
        <summary>{trans.__('More options')}</summary>
        <div className="wb-Fields">
          {more.map(field => (
            <Field key={field.name} field={field} />
          ))}
          <Directory form={form} />
        </div>
      </details>
    </>
  );
}

function Directory({ form }: { form: IForm }): React.JSX.Element {
  const { model, trans } = useDesk();
  return (
    <Control
      name={DIRECTORY}
      label={trans.__('Folder')}
      help={trans.__('where it runs; a folder in %1', form.directory)}
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
    </Control>
  );
}

/** What is wrong, but with no field that is seen. */
export function General({ form }: { form: IForm }): React.JSX.Element | null {
  const { model } = useDesk();
  const { first, more } = fieldsOf(form, model.values);
  const seen = [...first, ...more].map(its => its.name).concat(KERNEL, DIRECTORY);
  const others = Object.entries(model.errors).filter(([name]) => !seen.includes(name));
  return others.length === 0 ? null : (
    <Trouble>
      {others.map(([name, error]) => (
        <p key={name}>{error}</p>
      ))}
    </Trouble>
  );
}

/** Why a request or the start has failed. */
export function Failure(): React.JSX.Element | null {
  const { model, trans } = useDesk();
  const { failure } = model;
  return failure === null ? null : (
    <Trouble>
      <p>{failure.message}</p>
      {failure.log !== '' && <Verbatim text={failure.log} label={trans.__('The end of the log')} />}
    </Trouble>
  );
}

function Trouble({ children }: { children: React.ReactNode }): React.JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => {
    // it stands above the form, which may be scrolled
    box.current?.scrollIntoView({ block: 'nearest' });
  }, []);
  return (
    <div className="wb-Trouble" role="alert" ref={box}>
      {children}
    </div>
  );
}

/** How the start that the server has accepted goes, and what ends it. */
export function Progress(): React.JSX.Element {
  const { model, trans } = useDesk();
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
            <p>{stageOf(model.cluster, trans)}</p>
            <p className="wb-Help">
              {trans.__(
                'You can close this tab: the start goes on, and the panel shows how it ends.'
              )}
            </p>
          </>
        )}
      </div>
    </>
  );
}

function stageOf(cluster: ICluster | undefined, trans: TranslationBundle): string {
  if (cluster === undefined) {
    return trans.__('Starting…');
  }
  const { name, reason, up, ranks } = cluster;
  return [
    trans.__('Cluster %1: %2', name, stateOf(cluster, trans)),
    ...(reason === null ? [] : [trans.__('waits: %1', reason)]),
    ...(up > 0 ? [trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks, up)] : [])
  ].join(' · ');
}

/** The script of the job, as it would be handed in now, and what the scheduler says of it. */
export function ScriptPane(): React.JSX.Element {
  const { model, trans } = useDesk();
  const { lastScript } = model;
  const isOld = model.isChecking || model.script === null;
  const { script, scheduler, verdict } = scriptOf(lastScript);
  return (
    <section className="wb-Script" aria-label={trans.__('Job script')} aria-busy={model.isChecking}>
      <header>
        <h3>{trans.__('Job script')}</h3>
        <span className="wb-Help">
          {model.isChecking
            ? trans.__('checking…')
            : isOld && lastScript !== '' && trans.__('of an earlier state of the form')}
        </span>
        {lastScript !== '' && (
          <CopyButton text={lastScript} trans={trans} label={trans.__('Copy the job script')} />
        )}
      </header>
      {lastScript === '' ? (
        <p className="wb-Help">
          {model.isChecking ? '' : trans.__('The script appears here when every field is right.')}
        </p>
      ) : (
        <Verbatim text={script} label={trans.__('Job script')} isOld={isOld} />
      )}
      {verdict !== '' && (
        <p className={`wb-Verdict${isOld ? ' wb-mod-old' : ''}`} role="status">
          <strong>{trans.__('%1 says:', scheduler)}</strong> {verdict}
        </p>
      )}
    </section>
  );
}
