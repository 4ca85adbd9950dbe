import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ICluster } from '../contract';
import { stateOf } from '../words';
import { useDesk } from './hooks';

/** How the start that the server has accepted goes, and what ends it. */
export function Progress(): React.JSX.Element {
  const { model, trans } = useDesk();
  const isUnderWay = model.startId !== '';
  return (
    <>
      {isUnderWay && (
        <button
          type="button"
          className="wb-TextButton"
          onClick={() => {
            void model.cancel();
          }}
        >
          {trans.__('Cancel the start')}
        </button>
      )}
      <div role="status">
        {isUnderWay && (
          <>
            <p>{stageOf(model.cluster, trans)}</p>
            <p className="wb-Help">
              {trans.__(
                'You can close this tab: the start goes on, and the panel shows how it ends.'
              )}
            </p>
          </>
        )}
      </div>
    </>
  );
}

function stageOf(cluster: ICluster | undefined, trans: TranslationBundle): string {
  if (cluster === undefined) {
    return trans.__('Starting…');
  }
  const { name, reason, up, ranks } = cluster;
  return [
    trans.__('Cluster %1: %2', name, stateOf(cluster, trans)),
    ...(reason === null ? [] : [trans.__('waits: %1', reason)]),
    ...(up > 0 ? [trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks, up)] : [])
  ].join(' · ');
}
