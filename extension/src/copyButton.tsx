import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

// Milliseconds for which a button says that it has copied.
const SAID = 2000;

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
    }, SAID);
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
