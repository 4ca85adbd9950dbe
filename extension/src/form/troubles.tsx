import * as React from 'react';

import { Verbatim } from '../verbatim';
import type { IForm } from './contract';
import { useDesk } from './hooks';
import { DIRECTORY, fieldsOf, KERNEL } from './values';

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
