import assert from 'node:assert/strict';
import { test } from 'node:test';

import { endedClusters, LogsModel } from '../src/logs/logsModel';
import { cluster } from './support/fakes';
import { FakeClusters } from './support/forms';
import { FakeLogs, opened, polled, shown, until } from './support/logs';

test('a cluster that has ended is said to have, and its logs are read to their end', async () => {
  const { logs, clusters, model } = opened();
  model.setVisible(true);
  await until(model, () => shown(model) !== '');
  assert.ok(!model.hasEnded);

  logs.write('head', 'the last words\n');
  clusters.update({ clusters: [] });

  assert.ok(model.hasEnded);
  await until(model, () => shown(model).endsWith('the last words\n'));
  model.dispose();
});

test('nothing more is asked for when all of an ended cluster was read', async context => {
  const { logs, clusters, model, pass } = polled(context);
  clusters.clusters = [];
  model.setVisible(true);
  await pass(1);
  await pass(1);
  assert.equal(logs.asked.length, 2);

  await pass(60_000);
  await pass(60_000);

  assert.equal(logs.asked.length, 2);
  assert.equal(shown(model), 'of the head\n');
  model.dispose();
});

test('a cluster is not said to have ended while nothing is known', () => {
  const { clusters, model } = opened();

  clusters.update({ clusters: [], connectionState: 'connecting' });

  assert.ok(!model.hasEnded);
  model.dispose();
});

test('another cluster of the same name begins with its own logs', async () => {
  const { logs, clusters, model } = opened();
  model.setVisible(true);
  await until(model, () => shown(model) !== '');

  logs.texts.set('head', 'of another head, which has written more\n');
  clusters.update({ clusters: [cluster('mpi', { id: 'another' })] });

  await until(model, () => shown(model) === 'of another head, which has written more\n');
  model.dispose();
});

test('a cluster that comes after one that had ended begins with its own logs', async context => {
  const { logs, clusters, model, pass } = polled(context, null, { clusters: [] });
  model.setVisible(true);
  await pass(1);
  await pass(1);
  assert.equal(shown(model), 'of the head\n');

  logs.texts.set('head', 'of another head, which has written more\n');
  clusters.update({ clusters: [cluster('mpi')] });
  await pass(1);

  assert.equal(shown(model), 'of another head, which has written more\n');
  model.dispose();
});

test('what was read before a cluster was known is not read again', async () => {
  const { clusters, model } = opened(null, { clusters: [], connectionState: 'connecting' });
  model.setVisible(true);
  await until(model, () => shown(model) !== '');
  const { tail } = model;

  clusters.update({ clusters: [cluster('mpi')], connectionState: 'live' });

  assert.equal(model.tail, tail);
  model.dispose();
});

test('the logs of a cluster that has ended are those of an ended one though another has its name', async () => {
  const logs = new FakeLogs();
  logs.write('head', 'of the head\n');
  const clusters = new FakeClusters();
  clusters.update({ clusters: [cluster('mpi', { id: 'another' })] });
  const model = new LogsModel('mpi', logs, endedClusters(clusters), null, 1);
  model.setVisible(true);
  await until(model, () => shown(model) === 'of the head\n');

  clusters.update({ clusters: [cluster('mpi', { id: 'one more' })] });

  assert.ok(model.hasEnded);
  assert.equal(shown(model), 'of the head\n');
  model.dispose();
});
