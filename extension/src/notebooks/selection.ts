import type { ISignal } from '@lumino/signaling';

import type { ClustersModel } from '../model/clusters';

/** The notebooks, of which one is current. */
interface INotebooks {
  readonly currentWidget: object | null;
  readonly currentChanged: ISignal<unknown, object | null>;
}

/** Select the cluster that was selected when a notebook was current the last time, once the notebook is current again. */
export function bindSelection(notebooks: INotebooks, model: ClustersModel): void {
  const names = new WeakMap<object, string>();
  let previous = notebooks.currentWidget;
  notebooks.currentChanged.connect((_, notebook) => {
    if (previous && model.selectedName !== '') {
      names.set(previous, model.selectedName);
    }
    previous = notebook;
    const name = notebook ? names.get(notebook) : undefined;
    if (name !== undefined && model.cluster(name)) {
      model.select(name);
    }
  });
}
