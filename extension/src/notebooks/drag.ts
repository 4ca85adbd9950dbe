import { MimeData } from '@lumino/coreutils';
import { Drag } from '@lumino/dragdrop';
import type * as React from 'react';

import type { ICluster } from '../contract';
import { notifyInfo } from '../notify';
import { clientCode } from './clientCode';

// What notebooks take.
const CELLS_MIME = 'application/vnd.jupyter.cells';
// Pixels after which a press is a drag.
const DRAG_THRESHOLD = 5;

/**
 * Drag the code that connects to a cluster, as soon as the pointer has moved far enough.
 *
 * @param refusal - Returns why an element does not take the code; empty: it may.
 * @param onDrop - Called with the element that has taken the code.
 */
export function startDrag(
  cluster: ICluster,
  press: React.PointerEvent,
  refusal: (over: Node) => string,
  onDrop: (target: Node) => void
): void {
  // a finger scrolls the list
  if (press.button !== 0 || press.pointerType === 'touch') {
    return;
  }
  const { clientX, clientY } = press;
  const stop = () => {
    document.removeEventListener('pointermove', move, true);
    document.removeEventListener('pointerup', stop, true);
    document.removeEventListener('pointercancel', stop, true);
  };
  const move = (event: PointerEvent) => {
    if (event.buttons === 0) {
      // it was let go where this page could not see it
      stop();
      return;
    }
    if (Math.hypot(event.clientX - clientX, event.clientY - clientY) >= DRAG_THRESHOLD) {
      stop();
      void runDrag(cluster.name, event, refusal, onDrop);
    }
  };
  document.addEventListener('pointermove', move, true);
  document.addEventListener('pointerup', stop, true);
  document.addEventListener('pointercancel', stop, true);
}

async function runDrag(
  name: string,
  { clientX, clientY }: PointerEvent,
  refusal: (over: Node) => string,
  onDrop: (target: Node) => void
): Promise<void> {
  const code = clientCode(name);
  const mimeData = new MimeData();
  mimeData.setData(CELLS_MIME, [{ cell_type: 'code', source: code, metadata: {}, outputs: [] }]);
  mimeData.setData('text/plain', code);
  const dragImage = document.createElement('div');
  dragImage.className = 'wb-Dragged';
  dragImage.textContent = name;
  const drag = new Drag({
    mimeData,
    dragImage,
    supportedActions: 'copy-move',
    proposedAction: 'copy'
  });
  let reason = '';
  let entered: Node = document.body;
  const enter = (event: Event) => {
    const { target } = event;
    // the body gets this event, too, for each element that has not taken it
    if (target instanceof Node && target !== document.body) {
      reason = refusal(target);
      entered = target;
      if (reason !== '') {
        event.stopPropagation();
      }
    }
  };
  document.addEventListener('lm-dragenter', enter, true);
  const action = await drag.start(clientX, clientY);
  document.removeEventListener('lm-dragenter', enter, true);
  drag.dispose();
  if (reason !== '') {
    notifyInfo(reason);
  } else if (action !== 'none') {
    onDrop(entered);
  }
}
