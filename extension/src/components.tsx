import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { ISignal } from '@lumino/signaling';
import * as React from 'react';

import clustersSvg from '../style/icons/clusters.svg';
import dashboardSvg from '../style/icons/dashboard.svg';
import scaleSvg from '../style/icons/scale.svg';

/** The icon of clusters. */
export const clustersIcon = new LabIcon({ name: 'mpi-workbench:clusters', svgstr: clustersSvg });
/** The icon of dashboards. */
export const dashboardIcon = new LabIcon({ name: 'mpi-workbench:dashboard', svgstr: dashboardSvg });
/** The icon of the command that scales. */
export const scaleIcon = new LabIcon({ name: 'mpi-workbench:scale', svgstr: scaleSvg });

/** An icon on a button, which has a label of its own. */
export function Icon({ icon }: { icon: LabIcon.IMaybeResolvable }): React.JSX.Element {
  return (
    <LabIcon.resolveReact icon={icon} tag="span" width="16px" height="16px" aria-hidden="true" />
  );
}

/** A text that is shown unchanged: a log, a script, a command. */
export function Preformatted(props: {
  text: string;
  label: string;
  /** Whether the text is of an earlier state. */
  isStale?: boolean;
}): React.JSX.Element {
  // the text may be longer than its box, and is scrolled by keys
  return (
    <pre
      className={`wb-Verbatim${props.isStale ? ' wb-mod-old' : ''}`}
      role="group"
      aria-label={props.label}
      tabIndex={0}
    >
      {props.text}
    </pre>
  );
}

// Milliseconds for which the button shows that it has copied.
const COPIED_DURATION = 2000;

/** A button that copies a text. */
export function CopyButton(props: {
  text: string | (() => string);
  trans: TranslationBundle;
  label?: string;
}): React.JSX.Element {
  const { text, trans } = props;
  const [isCopied, setCopied] = React.useState(false);
  React.useEffect(() => {
    const timer = setTimeout(() => {
      setCopied(false);
    }, COPIED_DURATION);
    return () => {
      clearTimeout(timer);
    };
  }, [isCopied]);
  return (
    <button
      type="button"
      className="wb-TextButton"
      aria-label={props.label}
      onClick={() => {
        Clipboard.copyToSystem(typeof text === 'string' ? text : text());
        setCopied(true);
      }}
    >
      <span aria-live="polite">{isCopied ? trans.__('Copied') : trans.__('Copy')}</span>
    </button>
  );
}

/** Create the banner above the content of a tab: a message and buttons. */
export function createBanner(
  message: string,
  buttons: readonly { label: string; run: () => void }[]
): ReactWidget {
  const banner = ReactWidget.create(
    <div role="status">
      <p title={message}>{message}</p>
      {buttons.map(({ label, run }) => (
        <button key={label} type="button" className="wb-TextButton" onClick={run}>
          {label}
        </button>
      ))}
    </div>
  );
  banner.addClass('wb-Note');
  return banner;
}

/** Render a component again at each signal. */
export function useSignal(signal: ISignal<unknown, void>): void {
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    signal.connect(redraw);
    // the signal may have been emitted between the first render and this
    redraw();
    return () => {
      signal.disconnect(redraw);
    };
  }, [signal]);
}

// Seconds between two renders of components that show a time.
const CLOCK_INTERVAL = 5;

/** Return the time, now and every few seconds. */
export function useClock(now: () => number): number {
  const [time, setTime] = React.useState(now);
  React.useEffect(() => {
    const timer = setInterval(() => {
      setTime(now());
    }, CLOCK_INTERVAL * 1000);
    return () => {
      clearInterval(timer);
    };
  }, [now]);
  return time;
}
