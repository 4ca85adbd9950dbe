import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import type { ICluster, IPulse } from '../contract';
import type { IWorkbench } from '../tokens';

/** What all parts of the panel have at hand. */
export interface IPanelContext extends IWorkbench {
  /** Some commands are of plugins that can be disabled. */
  commands: CommandRegistry;
  /** Begin to drag the code of a cluster into a notebook. */
  drag: (cluster: ICluster, event: React.PointerEvent) => void;
}

export const PanelContext = React.createContext<IPanelContext | null>(null);

/** Return what the panel has at hand. */
export function usePanel(): IPanelContext {
  const panel = React.useContext(PanelContext);
  if (panel === null) {
    throw new Error('parts of the panel are used in the panel only');
  }
  return panel;
}

/** Return the last pulses of a cluster, and whenever there are new ones while an element can be seen. */
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
