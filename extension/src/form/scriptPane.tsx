import * as React from 'react';

import { CopyButton } from '../copyButton';
import { Verbatim } from '../verbatim';
import { useDesk } from './hooks';
import { scriptOf } from './script';

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
