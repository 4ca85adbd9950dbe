import assert from 'node:assert/strict';
import { test } from 'node:test';

import { LogsModel, withoutIt } from '../src/logs/logsModel';
import { cluster } from './support/fakes';
import { FakeClusters } from './support/forms';
import { FakeLogs, opened, shown, turn, until } from './support/logs';

test('a cluster that has ended is said to have, and its logs are read to their end', async () => {
  const { logs, clusters, model } = opened();
  model.see(true);
  await until(model, () => shown(model) !== '');
  assert.ok(!model.isOver);

  logs.write('head', 'the last words\n');
  clusters.tell({ clusters: [] });

  assert.ok(model.isOver);
  await until(model, () => shown(model).endsWith('the last words\n'));
  model.dispose();
});

test('nothing more is asked for when all of an ended cluster was read', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { logs, clusters, model } = opened();
  clusters.clusters = [];
  model.see(true);
  await turn();
  context.mock.timers.tick(1);
  await turn();
  assert.equal(logs.asked.length, 2);

  context.mock.timers.tick(60_000);
  await turn();

  assert.equal(logs.asked.length, 2);
  assert.equal(shown(model), 'of the head\n');
  model.dispose();
});

test('a cluster is not said to have ended while nothing is known', () => {
  const { clusters, model } = opened();

  clusters.tell({ clusters: [], state: 'connecting' });

  assert.ok(!model.isOver);
  model.dispose();
});

test('another cluster of the same name begins with its own logs', async () => {
  const { logs, clusters, model } = opened();
  model.see(true);
  await until(model, () => shown(model) !== '');

  logs.texts.set('head', 'of another head, which has written more\n');
  clusters.tell({ clusters: [cluster('mpi', { id: 'another' })] });

  await until(model, () => shown(model) === 'of another head, which has written more\n');
  model.dispose();
});

test('a cluster that comes after one that had ended begins with its own logs', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { logs, clusters, model } = opened(null, { clusters: [] });
  model.see(true);
  await turn();
  context.mock.timers.tick(1);
  await turn();
  assert.equal(shown(model), 'of the head\n');

  logs.texts.set('head', 'of another head, which has written more\n');
  clusters.tell({ clusters: [cluster('mpi')] });
  await turn();

  assert.equal(shown(model), 'of another head, which has written more\n');
  model.dispose();
});

test('what was read before a cluster was known is not read again', async () => {
  const { clusters, model } = opened(null, { clusters: [], state: 'connecting' });
  model.see(true);
  await until(model, () => shown(model) !== '');
  const { tail } = model;

  clusters.tell({ clusters: [cluster('mpi')], state: 'live' });

  assert.equal(model.tail, tail);
  model.dispose();
});

test('the logs of a cluster that has ended are those of an ended one though another has its name', async () => {
  const logs = new FakeLogs();
  logs.write('head', 'of the head\n');
  const clusters = new FakeClusters();
  clusters.tell({ clusters: [cluster('mpi', { id: 'another' })] });
  const model = new LogsModel('mpi', logs, withoutIt(clusters), null, 1);
  model.see(true);
  await until(model, () => shown(model) === 'of the head\n');

  clusters.tell({ clusters: [cluster('mpi', { id: 'one more' })] });

  assert.ok(model.isOver);
  assert.equal(shown(model), 'of the head\n');
  model.dispose();
});
