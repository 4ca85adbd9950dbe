import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import type { ICluster, IPulse } from '../contract';
import type { IWorkbench } from '../tokens';

/** What all components of the panel use. */
export interface IPanelContext extends IWorkbench {
  /** Some commands are of plugins that can be disabled. */
  commands: CommandRegistry;
  /** Begin to drag the code of a cluster into a notebook. */
  drag: (cluster: ICluster, event: React.PointerEvent) => void;
}

export const PanelContext = React.createContext<IPanelContext | null>(null);

/** Return the context of the panel. */
export function usePanel(): IPanelContext {
  const panel = React.useContext(PanelContext);
  if (panel === null) {
    throw new Error('components of the panel need the context of the panel');
  }
  return panel;
}

/** Return the last pulses of a cluster; while an element is visible, render again at each new pulse. */
export function usePulses(cluster: ICluster, element: React.RefObject<Element>): readonly IPulse[] {
  const { model } = usePanel();
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    const observer = new IntersectionObserver(entries => {
      model.pulsesChanged.disconnect(redraw);
      if (entries.at(-1)?.isIntersecting) {
        model.pulsesChanged.connect(redraw);
        redraw();
      }
    });
    if (element.current) {
      observer.observe(element.current);
    }
    return () => {
      observer.disconnect();
      model.pulsesChanged.disconnect(redraw);
    };
  }, [model, element]);
  return model.pulses(cluster);
}

/** The time by the server's clock, in seconds since the epoch. */
export const NowContext = React.createContext(0);
