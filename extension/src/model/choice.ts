import type { ClustersModel } from './clusters';

/** What remembers something from one visit to the next. */
export interface IMemory {
  fetch: (key: string) => Promise<unknown>;
  save: (key: string, value: string) => Promise<unknown>;
}

const KEY = 'mpi-workbench:chosen';

/** Choose the cluster that was chosen at the last visit, and remember which one is. */
export async function keepChoice(model: ClustersModel, memory: IMemory): Promise<void> {
  let kept: unknown;
  try {
    kept = await memory.fetch(KEY);
  } catch {
    // then the newest cluster is the chosen one
  }
  if (typeof kept === 'string' && model.choice === '') {
    model.choose(kept);
  }
  const look = () => {
    if (model.choice !== '' && model.choice !== kept) {
      kept = model.choice;
      // what cannot be remembered is chosen again
      memory.save(KEY, model.choice).catch(() => undefined);
    }
  };
  model.changed.connect(look);
  look();
}
