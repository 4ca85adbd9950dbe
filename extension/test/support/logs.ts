import type { TestContext } from 'node:test';

import type { ILogSource } from '../../src/api';
import type { ILogPart } from '../../src/contract';
import { LogsModel } from '../../src/logs/logsModel';
import { cluster } from './fakes';
import { FakeClusters } from './forms';

// Bytes that the server gives at a time.
const PART = 256 << 10;

/** The logs of a cluster on its server: plain ASCII files that can be written. */
export class FakeLogs implements ILogSource {
  readonly texts = new Map<string, string>();
  readonly asked: [file: string, from: number][] = [];
  listed = 0;
  trouble: Error | null = null;

  readonly files = () => {
    this.listed += 1;
    return this.respond([...this.texts].map(([name, text]) => ({ name, size: text.length })));
  };

  readonly part = (file: string, from: number): Promise<ILogPart> => {
    this.asked.push([file, from]);
    const text = this.texts.get(file) ?? '';
    const begin = from < 0 ? Math.max(0, text.length + from) : Math.min(from, text.length);
    const read = text.slice(begin, begin + PART);
    return this.respond({ text: read, next: begin + read.length, size: text.length });
  };

  readonly downloadUrl = (file: string) => `/${file}`;

  /** Answer nothing until the release. */
  hold(): void {
    this.held = new Promise(resolve => {
      this.release = resolve;
    });
  }

  release: () => void = () => undefined;

  write(file: string, text: string): void {
    this.texts.set(file, (this.texts.get(file) ?? '') + text);
  }

  private respond<T>(value: T): Promise<T> {
    return this.held.then(() => {
      if (this.trouble) {
        throw this.trouble;
      }
      return value;
    });
  }

  private held = Promise.resolve();
}

/** Return a model of the logs of a cluster, and what it asks. */
export function opened(
  file: string | null = null,
  known: Parameters<FakeClusters['update']>[0] = {}
) {
  const logs = new FakeLogs();
  logs.write('rank-0', 'of the rank\n');
  logs.write('head', 'of the head\n');
  const clusters = new FakeClusters();
  clusters.update({ clusters: [cluster('mpi')], ...known });
  const model = new LogsModel('mpi', logs, clusters, file, 1);
  return { logs, clusters, model };
}

/** Return a model whose timers are a fake, and what lets time pass. */
export function polled(context: TestContext, ...how: Parameters<typeof opened>) {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const pass = async (time: number) => {
    await turn();
    context.mock.timers.tick(time);
    await turn();
  };
  return { ...opened(...how), pass };
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
