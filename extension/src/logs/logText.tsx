import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { runsOf, type ILook } from './colours';
import type { LogsModel } from './logsModel';

// Pixels from the end within which one is at the end; of a line, as the style has it.
const NEAR = 24;
const LINE = 18;

/** The text of a log; at its end it stays there when more comes. */
export function LogText(props: {
  model: LogsModel;
  isWrapped: boolean;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { model, isWrapped, trans } = props;
  const { file, tail, isFollowing } = model;
  const box = React.useRef<HTMLDivElement>(null);
  const isAtEnd = React.useRef(true);
  React.useEffect(() => {
    isAtEnd.current = true;
  }, [tail, isFollowing]);
  React.useLayoutEffect(() => {
    if (box.current && isFollowing && isAtEnd.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  });
  return (
    <div
      className={`wb-Logs-text${isWrapped ? ' wb-mod-wrapped' : ''}`}
      ref={box}
      role="log"
      aria-live="off"
      aria-label={trans.__('Log %1 of %2', file ?? '', model.name)}
      tabIndex={0}
      onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < NEAR;
      }}
    >
      {tail.text.isCut && (
        <p className="wb-Logs-note">
          {trans.__('Only the end is shown; download it for all of it.')}
        </p>
      )}
      {tail.text.pieces.map(({ id, text, look }) => (
        <Piece key={id} text={text} look={look} />
      ))}
    </div>
  );
}

const Piece = React.memo(function Piece(props: { text: string; look: ILook }): React.JSX.Element {
  const { text, look } = props;
  const lines = text.split('\n').length - (text.endsWith('\n') ? 1 : 0);
  return (
    <div style={{ containIntrinsicHeight: `auto ${lines * LINE}px` }}>
      {runsOf(text, look).runs.map((run, at) => (
        <span key={at} className={classOf(run.look)}>
          {run.text}
        </span>
      ))}
    </div>
  );
});

function classOf({ colour, isBold }: ILook): string {
  return [colour && `wb-mod-${colour}`, isBold && 'wb-mod-bold'].filter(Boolean).join(' ');
}
