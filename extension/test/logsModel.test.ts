import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ApiError } from '../src/api';
import { LogTail } from '../src/logs/logText';
import { bannerText, LogsModel } from '../src/logs/logsModel';
import { cluster } from './support/fakes';
import { FakeLogs, opened, polled, shown, turn, until } from './support/logs';
import { trans } from './support/trans';

test('nothing is asked for before somebody sees it', () => {
  const { logs, model } = opened();

  assert.equal(logs.listed, 0);
  assert.equal(model.file, null);
  model.dispose();
});

test('the log of the head is read first, and on while it is followed', async () => {
  const { logs, model } = opened();
  model.setVisible(true);
  await until(model, () => shown(model) === 'of the head\n');

  logs.write('head', 'more\n');
  await until(model, () => shown(model) === 'of the head\nmore\n');

  assert.deepEqual(model.fileNames, { cluster: ['head'], ranks: ['rank-0'] });
  model.dispose();
});

test('the file that was open with the workspace is read', async () => {
  const { model } = opened('rank-0');
  model.setVisible(true);
  await until(model, () => shown(model) === 'of the rank\n');

  assert.equal(model.file, 'rank-0');
  model.dispose();
});

test('another file takes the place of the first one', async () => {
  const { model } = opened();
  model.setVisible(true);
  await until(model, () => shown(model) !== '');

  model.select('rank-0');
  assert.equal(shown(model), '');
  await until(model, () => shown(model) === 'of the rank\n');
  model.dispose();
});

const ENDS: [string, (model: LogsModel) => void][] = [
  [
    'sees',
    model => {
      model.setVisible(false);
    }
  ],
  [
    'follows',
    model => {
      model.follow(false);
    }
  ]
];
for (const [what, end] of ENDS) {
  test(`nothing more is asked for when nobody ${what} it any more`, async context => {
    const { logs, model, pass } = polled(context);
    model.setVisible(true);
    await pass(1);
    await pass(1);
    assert.equal(logs.asked.length, 2);

    end(model);
    await pass(60_000);

    assert.equal(logs.asked.length, 2);
    model.dispose();
  });
}

test('a file that is chosen during a read is read right after it, never two at a time', async context => {
  const { logs, model, pass } = polled(context);
  logs.hold();
  model.setVisible(true);
  await pass(1);
  assert.equal(logs.listed, 1);

  model.select('rank-0');
  model.select('head');
  model.select('rank-0');
  await pass(1);
  assert.equal(logs.listed, 1);
  logs.release();
  await pass(0);

  assert.equal(logs.listed, 1);
  assert.deepEqual(
    logs.asked.map(([file]) => file),
    ['rank-0', 'rank-0']
  );
  assert.equal(shown(model), 'of the rank\n');
  model.dispose();
});

test('a server that fails is asked less and less often, and often again when it answers', async context => {
  context.mock.method(Math, 'random', () => 0.5);
  const { logs, model, pass } = polled(context);
  logs.trouble = new Error('the server is down');
  model.setVisible(true);
  for (let time = 0; time < 100; time += 1) {
    await pass(1);
  }
  assert.ok(logs.listed < 12, `${logs.listed} requests`);

  logs.trouble = null;
  await pass(60_000);
  const { length } = logs.asked;
  for (let time = 0; time < 5; time += 1) {
    await pass(1);
  }

  assert.equal(logs.asked.length, length + 5);
  model.dispose();
});

test('nothing is asked for after the end', async context => {
  const { logs, model, pass } = polled(context);
  model.setVisible(true);
  await pass(1);
  const { length } = logs.asked;

  model.dispose();
  model.select('rank-0');
  model.setVisible(false);
  model.setVisible(true);
  await pass(60_000);

  assert.equal(logs.asked.length, length);
});

test('files that come later are listed when the cluster has changed', async () => {
  const { logs, clusters, model } = opened();
  model.setVisible(true);
  await until(model, () => shown(model) !== '');

  logs.write('rank-1', '');
  clusters.update({ clusters: [cluster('mpi', { up: 2 })] });

  await until(model, () => model.fileNames.ranks.length === 2);
  model.dispose();
});

test('files that come while the list is on its way are listed, too', async () => {
  const { logs, clusters, model } = opened();
  logs.hold();
  model.setVisible(true);
  while (logs.listed === 0) {
    await turn();
  }
  logs.write('rank-1', 'of another rank\n');
  clusters.update({ clusters: [cluster('mpi', { ranks: 8 })] });

  logs.release();

  await until(model, () => model.fileNames.ranks.length === 2);
  model.dispose();
});

test('trouble is told of, and over when the server answers again', async () => {
  const { logs, model } = opened();
  logs.trouble = new Error('the server is down');
  model.setVisible(true);
  await until(model, () => model.error === 'the server is down');

  logs.trouble = null;
  await until(model, () => model.error === '' && shown(model) !== '');
  model.dispose();
});

const REMOVALS: [string, (logs: FakeLogs) => void][] = [
  [
    'the server knows no such cluster',
    logs => {
      logs.trouble = new ApiError(404, 'no cluster of that name');
    }
  ],
  [
    'there are no files',
    logs => {
      logs.texts.clear();
    }
  ]
];

for (const [removed, remove] of REMOVALS) {
  test(`of an ended cluster whose logs were removed nothing more is asked: ${removed}`, async () => {
    const { logs, clusters, model } = opened();
    model.setVisible(true);
    await until(model, () => shown(model) !== '');
    model.setVisible(false);

    remove(logs);
    clusters.update({ clusters: [] });
    model.setVisible(true);
    await until(model, () => model.areLogsRemoved);
    const { listed } = logs;
    await turn();

    assert.equal(logs.listed, listed);
    assert.equal(model.error, '');
    assert.equal(shown(model), 'of the head\n');
    model.dispose();
  });
}

test('a cluster that is there and has no logs yet is asked on', async () => {
  const { logs, model } = opened();
  logs.texts.clear();
  model.setVisible(true);
  await until(model, () => logs.listed > 1);

  assert.ok(!model.areLogsRemoved);
  model.dispose();
});

async function banner(
  text: string,
  state: { areLogsRemoved?: boolean; hasEnded?: boolean }
): Promise<string> {
  const tail = new LogTail();
  await tail.read(() => Promise.resolve({ text, next: text.length, size: text.length }));
  return bannerText({ tail, areLogsRemoved: false, hasEnded: false, ...state }, trans);
}

test('a log of a cluster that is there speaks for itself, unless it is empty', async () => {
  assert.equal(await banner('a line', {}), '');
  assert.match(await banner('', {}), /still empty/);
});

test('of a cluster that has ended nothing more is expected', async () => {
  assert.match(await banner('a line', { hasEnded: true }), /its last log/);
  assert.match(await banner('', { hasEnded: true }), /this log is empty/);
});

test('logs that were removed are said to be, and what was read of them stays', async () => {
  assert.match(
    await banner('a line', { hasEnded: true, areLogsRemoved: true }),
    /removed; this text was loaded/
  );
  assert.match(await banner('', { hasEnded: true, areLogsRemoved: true }), /have been removed\.$/);
});
