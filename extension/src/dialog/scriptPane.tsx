import * as React from 'react';

import { CopyButton } from '../copyButton';
import { Verbatim } from '../verbatim';
import { useDesk } from './hooks';
import { scriptOf } from './script';

/** The script of the job, as it would be handed in now, and what the scheduler says of it. */
export function ScriptPane(): React.JSX.Element {
  const { model, trans } = useDesk();
  // until the next one has come, the last one is of use
  const last = React.useRef('');
  if (model.script !== null) {
    last.current = model.script;
  }
  const isOld = model.isChecking || model.script === null;
  const { script, scheduler, verdict } = scriptOf(last.current);
  return (
    <section className="wb-Script" aria-label={trans.__('Job script')} aria-busy={model.isChecking}>
      <header>
        <h3>{trans.__('Job script')}</h3>
        <span className="wb-Help">
          {model.isChecking
            ? trans.__('checking…')
            : isOld && last.current !== '' && trans.__('not of what is filled in now')}
        </span>
        {last.current !== '' && (
          <CopyButton text={last.current} trans={trans} label={trans.__('Copy the job script')} />
        )}
      </header>
      {last.current === '' ? (
        <p className="wb-Help">
          {model.isChecking ? '' : trans.__('There is one when what is filled in is right.')}
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
