import * as React from 'react';

import type { ICluster, IPulse } from '../contract';
import type { IWorkbench } from '../tokens';

/** What all parts of the panel have at hand. */
export interface IDesk extends IWorkbench {
  /** Execute a command of this extension. */
  run: (command: string, args?: Record<string, string>) => void;
  /** Whether there is such a command: some are of plugins that can be disabled. */
  can: (command: string) => boolean;
  /** Whether a command can be executed now. */
  isEnabled: (command: string, args: Record<string, string>) => boolean;
  /** Begin to drag the code of a cluster into a notebook. */
  drag: (cluster: ICluster, event: React.PointerEvent) => void;
}

export const Desk = React.createContext<IDesk | null>(null);

/** Return what the panel has at hand. */
export function useDesk(): IDesk {
  const desk = React.useContext(Desk);
  if (desk === null) {
    throw new Error('parts of the panel are used in the panel only');
  }
  return desk;
}

/** Return the last pulses of a cluster, and whenever there are new ones while an element can be seen. */
export function usePulses(cluster: ICluster, element: React.RefObject<Element>): readonly IPulse[] {
  const { model } = useDesk();
  const [, draw] = React.useReducer((drawn: number) => drawn + 1, 0);
  React.useEffect(() => {
    const observer = new IntersectionObserver(seen => {
      model.pulsed.disconnect(draw);
      if (seen.at(-1)?.isIntersecting) {
        model.pulsed.connect(draw);
        draw();
      }
    });
    if (element.current) {
      observer.observe(element.current);
    }
    return () => {
      observer.disconnect();
      model.pulsed.disconnect(draw);
    };
  }, [model, element]);
  return model.pulses(cluster);
}

/** The time by the server's clock, in seconds since the epoch. */
export const Now = React.createContext(0);
