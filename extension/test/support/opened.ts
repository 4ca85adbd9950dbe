import { LogsModel } from '../../src/logs/logsModel';
import { cluster } from './fakes';
import { FakeClusters } from './forms';
import { FakeLogs } from './logs';

/** Return a model of the logs of a cluster, and what it asks. */
export function opened(
  file: string | null = null,
  known: Parameters<FakeClusters['tell']>[0] = {}
) {
  const logs = new FakeLogs();
  logs.write('rank-0', 'of the rank\n');
  logs.write('head', 'of the head\n');
  const clusters = new FakeClusters();
  clusters.tell({ clusters: [cluster('mpi')], ...known });
  const model = new LogsModel('mpi', logs, clusters, file, 1);
  return { logs, clusters, model };
}

/** Wait until a model says that something is so. */
export async function until(model: LogsModel, isSo: () => boolean): Promise<void> {
  await new Promise<void>(resolve => {
    const look = () => {
      if (isSo()) {
        model.changed.disconnect(look);
        resolve();
      }
    };
    model.changed.connect(look);
    look();
  });
}

/** All that a fake answers is there after it. */
export const turn = () => new Promise(resolve => setImmediate(resolve));

/** Return the text that a model shows. */
export const shown = (model: LogsModel) => model.tail.text.toString();
