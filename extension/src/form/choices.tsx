import * as React from 'react';

import type { IField, IForm } from './contract';
import { Control } from './control';
import { CopyButton } from '../copyButton';
import { useDesk } from './hooks';
import { KERNEL } from './values';

/** What starts the cluster: only what is there can be chosen. */
export function Scheduler({ form, field }: { form: IForm; field: IField }): React.JSX.Element {
  const { model, trans } = useDesk();
  const first = React.useRef<HTMLSelectElement>(null);
  React.useEffect(() => {
    // the tab was activated before there was anything in it
    if (document.activeElement?.closest('.wb-New')?.contains(first.current)) {
      first.current?.focus();
    }
  }, []);
  return (
    <Control name={field.name} label={field.label} help={trans.__('what starts the job')}>
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
    </Control>
  );
}

/** The environment that the ranks run in: that of a kernel, or the server's. */
export function Kernel(): React.JSX.Element {
  const { model, trans } = useDesk();
  const { kernels, badKernel, unlistedKernel } = model;
  const lacking = badKernel && (
    <>
      <p>{trans.__('This environment does not have the workbench. Install it:')}</p>
      <div className="wb-Hint">
        <code>{badKernel.hint}</code>
        <CopyButton text={badKernel.hint ?? ''} trans={trans} />
      </div>
    </>
  );
  return (
    <Control
      name={KERNEL}
      label={trans.__('Environment')}
      help={trans.__('kernel whose Python the ranks run')}
      error={lacking}
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
            {kernels === null ? trans.__('looking for kernels…') : trans.__('that of this server')}
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
    </Control>
  );
}
