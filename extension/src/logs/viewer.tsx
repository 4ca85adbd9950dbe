import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CopyButton } from '../copyButton';
import { useSignal } from '../sidebar/hooks';
import { bytes } from '../words';
import { matching } from './files';
import type { LogsModel } from './logsModel';
import { LogText } from './logText';
import { noteOf } from './note';

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
