import * as React from 'react';

/** A text that somebody else has written, as it is: a log, a script, a command. */
export function Verbatim(props: {
  text: string;
  label: string;
  /** Whether it tells of what was before. */
  isOld?: boolean;
}): React.JSX.Element {
  // it may be longer than its box, and is scrolled by keys
  return (
    <pre
      className={`wb-Verbatim${props.isOld ? ' wb-mod-old' : ''}`}
      role="group"
      aria-label={props.label}
      tabIndex={0}
    >
      {props.text}
    </pre>
  );
}
