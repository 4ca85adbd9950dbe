import * as React from 'react';

import { useSignal } from '../sidebar/hooks';
import { failed } from '../telling';
import { Kernel, Scheduler } from './choices';
import type { IForm } from './contract';
import { Control } from './control';
import { Field } from './field';
import { Desk, useDesk, type IDesk } from './hooks';
import { Progress } from './progress';
import { ScriptPane } from './scriptPane';
import { Failure, General } from './troubles';
import { DIRECTORY, fieldsOf } from './values';

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
