import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

/** Return what a tab says when its cluster has ended. */
export function endedNote(props: {
  cluster: string;
  trans: TranslationBundle;
  showLogs: (() => void) | undefined;
  close: () => void;
}): ReactWidget {
  const { cluster, trans, showLogs, close } = props;
  const told = trans.__('Cluster %1 has ended.', cluster);
  const note = ReactWidget.create(
    <div role="status">
      <p title={told}>{told}</p>
      {showLogs && (
        <button type="button" className="wb-TextButton" onClick={showLogs}>
          {trans.__('Show its logs')}
        </button>
      )}
      <button type="button" className="wb-TextButton" onClick={close}>
        {trans.__('Close this tab')}
      </button>
    </div>
  );
  note.addClass('wb-Ended');
  return note;
}
