import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from './api';
import { Preformatted } from './components';

// Characters of a notification that JupyterLab shows.
const MAX_LENGTH = 140;
// Milliseconds to read a hint.
const INFO_DURATION = 8000;

/** Return what tells the user that something has failed, and why. */
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

/** Tell the user why nothing happens. Lab shows what has no time of its own in its list alone. */
export function notifyInfo(message: string, actions: Notification.IAction[] = []): void {
  Notification.info(message, { autoClose: INFO_DURATION, actions });
}

/** Return the button of a notification behind which all of it stands, where there is more than is shown. */
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
