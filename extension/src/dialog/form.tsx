import * as React from 'react';

import { useSignal } from '../sidebar/hooks';
import { Kernel, Scheduler } from './choices';
import type { IForm } from './contract';
import { Control } from './control';
import { Field } from './field';
import { Desk, useDesk, type IDesk } from './hooks';
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
        model.failure ? (
          <Failure />
        ) : (
          <p role="status">{trans.__('Asking the server for the form…')}</p>
        )
      ) : (
        <div className="wb-New">
          <div className="wb-Form">
            <General form={form} />
            <Failure />
            <fieldset aria-disabled={model.isStarting}>
              <Fields form={form} />
            </fieldset>
          </div>
          <ScriptPane />
        </div>
      )}
      <p className="wb-New-status" role="status">
        {model.isFollowing &&
          trans.__(
            'Starting… You can close this dialog: the start goes on, and the panel shows how it ends.'
          )}
      </p>
    </Desk.Provider>
  );
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
