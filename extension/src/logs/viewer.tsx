import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton, useSignal } from '../components';
import { formatBytes } from '../format';
import { type ITextStyle, parseRuns } from './logText';
import { bannerText, filterRanks, type LogsModel } from './logsModel';

/** The logs of a cluster, one at a time. */
export function LogViewer(props: {
  model: LogsModel;
  downloadUrl: (file: string) => string;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { model, downloadUrl, trans } = props;
  useSignal(model.changed);
  const [isWrapped, setWrapped] = React.useState(false);
  const { file, tail, error, isFollowing, areLogsRemoved } = model;
  const banner = bannerText(model, trans);
  return (
    <>
      <div className="wb-Logs-bar" role="group" aria-label={trans.__('Logs of %1', model.name)}>
        <FileSelect model={model} trans={trans} />
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
          label={trans.__('Copy the shown text')}
          trans={trans}
        />
        <a
          className="wb-TextButton"
          role="link"
          href={file === null || areLogsRemoved ? undefined : downloadUrl(file)}
          aria-disabled={file === null || areLogsRemoved}
          title={formatBytes(tail.size)}
          download
        >
          {trans.__('Download')}
        </a>
      </div>
      <div role="status">
        {error !== '' && <p className="wb-Logs-note wb-Error">{error}</p>}
        {error === '' && banner !== '' && <p className="wb-Logs-note">{banner}</p>}
      </div>
      <LogText model={model} isWrapped={isWrapped} trans={trans} />
    </>
  );
}

function FileSelect({
  model,
  trans
}: {
  model: LogsModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const [filter, setFilter] = React.useState('');
  const { fileNames, file } = model;
  const ranks = filterRanks(fileNames.ranks, filter);
  const isShown = file === null || fileNames.cluster.includes(file) || ranks.includes(file);
  return (
    <>
      <select
        aria-label={trans.__('Log file')}
        value={file ?? ''}
        disabled={file === null}
        onChange={event => {
          model.select(event.target.value);
        }}
      >
        {!isShown && <option value={file}>{file}</option>}
        <optgroup label={trans.__('Cluster')}>{fileNames.cluster.map(fileOption)}</optgroup>
        {ranks.length > 0 && (
          <optgroup label={trans.__('Ranks (%1 of %2)', ranks.length, fileNames.ranks.length)}>
            {ranks.map(fileOption)}
          </optgroup>
        )}
      </select>
      {fileNames.ranks.length > 1 && (
        <input
          type="search"
          aria-label={trans.__('Filter ranks, for example 3, 0-7 or w1; Enter shows the first one')}
          title={trans.__('For example 3, 0-7 or w1; Enter shows the first one')}
          placeholder={trans.__('filter ranks')}
          value={filter}
          onChange={event => {
            setFilter(event.target.value);
          }}
          onKeyDown={event => {
            if (event.key === 'Enter' && ranks[0] !== undefined) {
              model.select(ranks[0]);
            }
          }}
        />
      )}
    </>
  );
}

function fileOption(name: string): React.JSX.Element {
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
const END_DISTANCE = 24;
const LINE_HEIGHT = 18;

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
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < END_DISTANCE;
      }}
    >
      {tail.text.isCut && (
        <p className="wb-Logs-note">
          {trans.__('Only the end of the file is shown; download the file for all of it.')}
        </p>
      )}
      {tail.text.chunks.map(({ id, text, style }) => (
        <Chunk key={id} text={text} style={style} />
      ))}
    </div>
  );
}

const Chunk = React.memo(function Piece(props: {
  text: string;
  style: ITextStyle;
}): React.JSX.Element {
  const { text, style } = props;
  const lines = text.split('\n').length - (text.endsWith('\n') ? 1 : 0);
  return (
    <div style={{ containIntrinsicHeight: `auto ${lines * LINE_HEIGHT}px` }}>
      {parseRuns(text, style).runs.map((run, at) => (
        <span key={at} className={styleClass(run.style)}>
          {run.text}
        </span>
      ))}
    </div>
  );
});

function styleClass({ color, isBold }: ITextStyle): string {
  return [color && `wb-mod-${color}`, isBold && 'wb-mod-bold'].filter(Boolean).join(' ');
}
