import * as React from 'react';

import type { ICluster } from '../contract';
import { failed } from '../telling';
import { moodOf, stateOf } from '../words';
import { CardButtons } from './cardButtons';
import { CardFacts } from './cardFacts';
import { CardPulse } from './cardPulse';
import { useDesk } from './hooks';
import { CloseIcon } from './icons';

/** What is told of a cluster, and what can be done with it; drawn again only if the cluster is another object. */
export const Card = React.memo(function Card(props: {
  cluster: ICluster;
  isChosen: boolean;
}): React.JSX.Element {
  const { cluster, isChosen } = props;
  const { model, trans, drag } = useDesk();
  const state = stateOf(cluster, trans);
  const title = `wb-cluster-${cluster.name}`;
  const choose = () => {
    model.choose(cluster.name);
  };
  return (
    <li
      className={`wb-Card${isChosen ? ' wb-mod-chosen' : ''}`}
      aria-labelledby={title}
      aria-current={isChosen ? 'true' : undefined}
      data-cluster={cluster.name}
      data-state={cluster.state}
      onClick={choose}
      // the commands of the menu mean the chosen cluster
      onContextMenu={choose}
    >
      <div
        className="wb-Card-head"
        title={trans.__('Drag it into a notebook for a cell that connects to %1', cluster.name)}
        onPointerDown={event => {
          drag(cluster, event);
        }}
      >
        <span className={`wb-Dot wb-mod-${moodOf(cluster)}`} aria-hidden="true" />
        <h3 id={title}>
          <button type="button" className="wb-Name" aria-pressed={isChosen}>
            {cluster.name}
          </button>
        </h3>
        <span className="wb-State">{state}</span>
      </div>
      <Ranks cluster={cluster} />
      <CardFacts cluster={cluster} />
      {cluster.up > 0 && <CardPulse cluster={cluster} />}
      {cluster.error !== null && <LastError cluster={cluster} error={cluster.error} />}
      <CardButtons cluster={cluster} />
    </li>
  );
});

/** Why the last thing that was done to a cluster has failed, until somebody has read it. */
function LastError(props: { cluster: ICluster; error: string }): React.JSX.Element {
  const { name } = props.cluster;
  const { api, trans } = useDesk();
  const label = trans.__('Dismiss the error of %1', name);
  return (
    <div className="wb-LastError">
      <p className="wb-Error" role="alert">
        {props.error}
      </p>
      <button
        type="button"
        className="wb-Button"
        title={label}
        aria-label={label}
        onClick={() => {
          api.dismissError(name).catch(failed(name, trans));
        }}
      >
        <CloseIcon />
      </button>
    </div>
  );
}

function Ranks({ cluster }: { cluster: ICluster }): React.JSX.Element {
  const { trans } = useDesk();
  const { up, ranks } = cluster;
  const partly = trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks, up);
  return (
    <div className="wb-Ranks">
      <div
        className={`wb-Bar${up < ranks ? ' wb-mod-partial' : ''}`}
        role="meter"
        aria-label={trans.__('Ranks of %1', cluster.name)}
        aria-valuemin={0}
        aria-valuemax={ranks}
        aria-valuenow={up}
        aria-valuetext={partly}
      >
        <div style={{ width: `${ranks > 0 ? (100 * up) / ranks : 0}%` }} />
      </div>
      <span>{up === ranks ? trans._n('%1 rank', '%1 ranks', ranks) : partly}</span>
    </div>
  );
}
