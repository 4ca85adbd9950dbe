import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

/** Return what stands above the content of a tab: a sentence, and buttons. */
export function tabNote(
  told: string,
  buttons: readonly { label: string; run: () => void }[]
): ReactWidget {
  const note = ReactWidget.create(
    <div role="status">
      <p title={told}>{told}</p>
      {buttons.map(({ label, run }) => (
        <button key={label} type="button" className="wb-TextButton" onClick={run}>
          {label}
        </button>
      ))}
    </div>
  );
  note.addClass('wb-Note');
  return note;
}
