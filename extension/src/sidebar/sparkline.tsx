import * as React from 'react';

import type { IPulse } from '../contract';
import { KEPT } from '../model/history';

const WIDTH = 120;
const HEIGHT = 24;

/** Return the points of a line, the last one at the right edge. */
export function points(values: readonly number[], top: number): string {
  const step = WIDTH / (KEPT - 1);
  const left = WIDTH - step * (values.length - 1);
  return values
    .map((value, at) => {
      const height = HEIGHT * Math.min(1, Math.max(0, value / top));
      return `${(left + step * at).toFixed(1)},${(HEIGHT - height).toFixed(1)}`;
    })
    .join(' ');
}

/** The CPU of the last two minutes. */
export function Sparkline(props: { pulses: readonly IPulse[]; label: string }): React.JSX.Element {
  const values = props.pulses.map(pulse => pulse.cpu);
  // ranks with several threads take several cores
  const top = Math.max(100, ...values);
  const line = points(values, top);
  return (
    <svg
      className="wb-Sparkline"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      {values.length > 1 && (
        <>
          <polygon points={`${line} ${WIDTH},${HEIGHT} ${line.split(',')[0] ?? '0'},${HEIGHT}`} />
          <polyline points={line} />
        </>
      )}
    </svg>
  );
}
