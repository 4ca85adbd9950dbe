import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from './api';
import { Preformatted } from './components';

// The number of characters of a notification that JupyterLab shows.
const MAX_LENGTH = 140;
// Milliseconds to read an information.
const INFO_DURATION = 8000;

/** Return a handler of errors that notifies the user of the error. */
export function notifyError(title: string, trans: TranslationBundle): (error: unknown) => void {
  return error => {
    const reason = error instanceof Error ? error.message : String(error);
    const log = error instanceof ApiError ? error.log : null;
    const message = `${title}: ${reason}`;
    Notification.error(message, {
      autoClose: false,
      actions: detailsActions(title, message, trans, log ?? '')
    });
  };
}

/** Notify the user. JupyterLab shows a notification without a duration in its list only. */
export function notifyInfo(message: string, actions: Notification.IAction[] = []): void {
  Notification.info(message, { autoClose: INFO_DURATION, actions });
}

/** Return the button of a notification that shows the whole message, where it is longer than JupyterLab shows. */
export function detailsActions(
  title: string,
  message: string,
  trans: TranslationBundle,
  log = ''
): Notification.IAction[] {
  if (log === '' && message.length <= MAX_LENGTH) {
    return [];
  }
  const body = (
    <div className="wb-Details">
      <p>{message}</p>
      {log !== '' && <Preformatted text={log} label={trans.__('The end of the log')} />}
    </div>
  );
  const buttons = [Dialog.okButton({ label: trans.__('Close') })];
  return [
    {
      label: trans.__('Details'),
      callback: () => {
        void showDialog({ title, body, buttons });
      }
    }
  ];
}
