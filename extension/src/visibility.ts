import type { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import { MessageLoop } from '@lumino/messaging';

import type { ClustersModel } from './model/clusters';

// Messages that can change whether a widget is visible: a container that is shown or hidden sends them, too.
const VISIBILITY_MESSAGES = ['after-attach', 'before-detach', 'after-show', 'after-hide'];

/** Call a function with whether the user can see a widget, whenever that may have changed. */
export function observeVisibility(
  widget: ReactWidget,
  callback: (isVisible: boolean) => void
): void {
  const update = () => {
    if (!widget.isDisposed) {
      callback(widget.isVisible && !document.hidden);
    }
  };
  MessageLoop.installMessageHook(widget, (_, message) => {
    if (VISIBILITY_MESSAGES.includes(message.type)) {
      // a hook runs before the widget handles the message
      queueMicrotask(update);
    }
    return true;
  });
  document.addEventListener('visibilitychange', update);
  widget.disposed.connect(() => {
    document.removeEventListener('visibilitychange', update);
  });
}

/**
 * Watch the pulses of clusters while a widget is visible.
 *
 * @param name - Returns the name of the cluster whose pulses the widget shows; undefined: it shows those of all.
 */
export function watchWhileVisible(
  widget: ReactWidget,
  model: ClustersModel,
  name?: () => string | undefined
): void {
  let isVisible = false;
  let watched: string | undefined;
  let watch: IDisposable | undefined;
  const update = () => {
    const previous = watch;
    if (!isVisible) {
      watch = undefined;
    } else if (!watch || watched !== name?.()) {
      watched = name?.();
      watch = model.watch(watched);
    }
    if (previous !== watch) {
      previous?.dispose();
    }
  };
  observeVisibility(widget, now => {
    isVisible = now;
    update();
  });
  model.changed.connect(update);
  widget.disposed.connect(() => {
    model.changed.disconnect(update);
    watch?.dispose();
  });
}
