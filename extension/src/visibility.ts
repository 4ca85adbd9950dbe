import type { ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import { MessageLoop } from '@lumino/messaging';

import type { ClustersModel } from './model/clusters';

// Messages after which a widget may be seen, or no longer: also if what it is in is shown or hidden.
const TURNS = ['after-attach', 'after-show', 'after-hide'];

/**
 * Has clusters be watched while a widget can be seen.
 *
 * @param name - Returns the name of the cluster whose pulses the widget shows; without it, it shows those of all.
 */
export function watchWhileSeen(
  widget: ReactWidget,
  model: ClustersModel,
  name?: () => string | undefined
): void {
  let watched: string | undefined;
  let watch: IDisposable | undefined;
  const look = () => {
    const isSeen = widget.isVisible && !document.hidden;
    const before = watch;
    if (!isSeen) {
      watch = undefined;
    } else if (!watch || watched !== name?.()) {
      watched = name?.();
      watch = model.watch(watched);
    }
    if (before !== watch) {
      before?.dispose();
    }
  };
  MessageLoop.installMessageHook(widget, (_, message) => {
    if (TURNS.includes(message.type)) {
      // the message is heard before the widget has taken it
      queueMicrotask(look);
    }
    return true;
  });
  model.changed.connect(look);
  document.addEventListener('visibilitychange', look);
  widget.disposed.connect(() => {
    model.changed.disconnect(look);
    document.removeEventListener('visibilitychange', look);
    watch?.dispose();
  });
}
