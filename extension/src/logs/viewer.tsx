import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton, useSignal } from '../components';
import { bytes } from '../format';
import { matching } from './logFiles';
import { type ILook, runsOf } from './logText';
import { type LogsModel, noteOf } from './logsModel';

/** The logs of a cluster, one at a time. */
export function Viewer(props: {
  model: LogsModel;
  address: (file: string) => string;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { model, address, trans } = props;
  useSignal(model.changed);
  const [isWrapped, setWrapped] = React.useState(false);
  const { file, tail, trouble, isFollowing, isGone } = model;
  const note = noteOf(model, trans);
  return (
    <>
      <div className="wb-Logs-bar" role="group" aria-label={trans.__('Logs of %1', model.name)}>
        <Files model={model} trans={trans} />
        <Toggle
          label={trans.__('Follow')}
          isOn={isFollowing}
          set={isOn => {
            model.follow(isOn);
          }}
        />
        <Toggle label={trans.__('Wrap lines')} isOn={isWrapped} set={setWrapped} />
        <CopyButton
          text={() => tail.text.toString()}
          label={trans.__('Copy what is shown')}
          trans={trans}
        />
        <a
          className="wb-TextButton"
          role="link"
          href={file === null || isGone ? undefined : address(file)}
          aria-disabled={file === null || isGone}
          title={bytes(tail.size)}
          download
        >
          {trans.__('Download')}
        </a>
      </div>
      <div role="status">
        {trouble !== '' && <p className="wb-Logs-note wb-Error">{trouble}</p>}
        {trouble === '' && note !== '' && <p className="wb-Logs-note">{note}</p>}
      </div>
      <LogText model={model} isWrapped={isWrapped} trans={trans} />
    </>
  );
}

function Files({
  model,
  trans
}: {
  model: LogsModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const [filter, setFilter] = React.useState('');
  const { names, file } = model;
  const ranks = matching(names.ranks, filter);
  const isShown = file === null || names.cluster.includes(file) || ranks.includes(file);
  return (
    <>
      <select
        aria-label={trans.__('Log file')}
        value={file ?? ''}
        disabled={file === null}
        onChange={event => {
          model.choose(event.target.value);
        }}
      >
        {!isShown && <option value={file}>{file}</option>}
        <optgroup label={trans.__('Cluster')}>{names.cluster.map(option)}</optgroup>
        {ranks.length > 0 && (
          <optgroup label={trans.__('Ranks (%1 of %2)', ranks.length, names.ranks.length)}>
            {ranks.map(option)}
          </optgroup>
        )}
      </select>
      {names.ranks.length > 1 && (
        <input
          type="search"
          aria-label={trans.__('Filter ranks, as 3, 0-7 or w1; Enter shows the first one')}
          title={trans.__('As 3, 0-7 or w1; Enter shows the first one')}
          placeholder={trans.__('filter ranks')}
          value={filter}
          onChange={event => {
            setFilter(event.target.value);
          }}
          onKeyDown={event => {
            if (event.key === 'Enter' && ranks[0] !== undefined) {
              model.choose(ranks[0]);
            }
          }}
        />
      )}
    </>
  );
}

function option(name: string): React.JSX.Element {
  return (
    <option key={name} value={name}>
      {name}
    </option>
  );
}

function Toggle(props: {
  label: string;
  isOn: boolean;
  set: (isOn: boolean) => void;
}): React.JSX.Element {
  return (
    <label>
      <input
        type="checkbox"
        checked={props.isOn}
        onChange={event => {
          props.set(event.target.checked);
        }}
      />
      {props.label}
    </label>
  );
}

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
