import type { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import { MessageLoop } from '@lumino/messaging';

import type { ClustersModel } from './model/clusters';

// Messages after which a widget may be seen, or no longer: also if what it is in is shown or hidden.
const VISIBILITY_MESSAGES = ['after-attach', 'after-show', 'after-hide'];

/**
 * Has clusters be watched while a widget can be seen.
 *
 * @param name - Returns the name of the cluster whose pulses the widget shows; without it, it shows those of all.
 */
export function watchWhileVisible(
  widget: ReactWidget,
  model: ClustersModel,
  name?: () => string | undefined
): void {
  let watched: string | undefined;
  let watch: IDisposable | undefined;
  const update = () => {
    const isVisible = widget.isVisible && !document.hidden;
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
  MessageLoop.installMessageHook(widget, (_, message) => {
    if (VISIBILITY_MESSAGES.includes(message.type)) {
      // the message is heard before the widget has taken it
      queueMicrotask(update);
    }
    return true;
  });
  model.changed.connect(update);
  document.addEventListener('visibilitychange', update);
  widget.disposed.connect(() => {
    model.changed.disconnect(update);
    document.removeEventListener('visibilitychange', update);
    watch?.dispose();
  });
}
