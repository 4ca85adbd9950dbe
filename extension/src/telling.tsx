import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from './apiError';

/** Return what tells the user that something has failed, and why; the end of the log is a click away. */
export function failed(what: string, trans: TranslationBundle): (error: unknown) => void {
  return error => {
    const message = error instanceof Error ? error.message : String(error);
    const log = error instanceof ApiError ? error.log : null;
    Notification.error(`${what}: ${message}`, {
      autoClose: false,
      actions: log
        ? [
            {
              label: trans.__('Log'),
              callback: () => {
                void showLog(what, log, trans);
              }
            }
          ]
        : []
    });
  };
}

/** Show the end of a log. */
export async function showLog(title: string, log: string, trans: TranslationBundle): Promise<void> {
  await showDialog({
    title,
    body: (
      <pre className="wb-Log" tabIndex={0}>
        {log}
      </pre>
    ),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
