import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ClustersModel, HISTORY_LENGTH } from '../src/model/clusters';
import { cluster, FakeServer, gone, live, names, state } from './support/fakes';

const NOTHING = { gone: [], broken: [], starts: [], time: 0 };

const pulse = (cpu: number) => ({ cpu, memory: 0, clients: 1, idle: null });

test('a model that has not heard anything is connecting', () => {
  const model = new ClustersModel(new FakeServer());

  assert.equal(model.connectionState, 'connecting');
  assert.deepEqual(model.clusters, []);
});

test('the newest cluster comes first, and clusters of one moment by their names', () => {
  const { model } = live(
    cluster('old', { created: 1 }),
    cluster('b', { created: 2 }),
    cluster('a', { created: 2 })
  );

  assert.deepEqual(names(model), ['a', 'b', 'old']);
  assert.equal(model.connectionState, 'live');
});

test('a change replaces what has changed, and leaves the other objects alone', () => {
  const { server, model } = live(cluster('a'), cluster('b'));
  const [, other] = model.clusters;
  const lists: string[][] = [];
  model.changed.connect(() => lists.push(names(model)));

  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [cluster('a', { up: 3 })] });

  assert.equal(model.cluster('a')?.up, 3);
  assert.equal(model.clusters[1], other);
  assert.deepEqual(lists, [['a', 'b']]);
});

test('a cluster that is gone is in the list no longer', () => {
  const { server, model } = live(cluster('a'), cluster('b'));

  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [], gone: ['a'] });

  assert.deepEqual(names(model), ['b']);
});

test('a name that is gone and given again in one message is the new cluster', () => {
  const { server, model } = live(cluster('a'));

  const again = cluster('a', { id: 'another' });
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [again], gone: ['a'] });

  assert.equal(model.cluster('a')?.id, 'another');
});

test('what is told anew after a gap keeps the objects that are as they were', () => {
  const { server, model } = live(cluster('a'), cluster('b'));
  const before = model.cluster('a');

  server.socket.receive({ type: 'state', ...state(cluster('a'), cluster('c')) });

  assert.equal(model.cluster('a'), before);
  assert.deepEqual(names(model), ['a', 'c']);
});

test('a start is kept until it is a cluster', () => {
  const { server, model } = live();
  const start = { name: null, message: '', log: '', since: 0 };

  server.socket.receive({
    type: 'changed',
    ...NOTHING,
    clusters: [],
    starts: [
      { id: '1', state: 'starting', ...start },
      { id: '2', state: 'ready', ...start },
      { id: '3', state: 'failed', ...start }
    ]
  });

  assert.deepEqual(
    model.starts.map(start => start.id),
    ['1', '3']
  );
  assert.equal(model.findStart('2')?.state, 'ready');
});

test('pulses of two minutes are kept, and none of a cluster that had the name before', () => {
  const { server, model } = live(cluster('a'));
  const a = cluster('a');

  for (let cpu = 0; cpu < HISTORY_LENGTH + 5; cpu++) {
    server.socket.receive({
      type: 'pulse',
      pulses: { a: pulse(cpu), stranger: pulse(1) },
      time: 0
    });
  }

  assert.deepEqual([model.pulses(a).length, model.pulses(a)[0]?.cpu], [HISTORY_LENGTH, 5]);
  assert.deepEqual(model.pulses(cluster('a', { id: 'another' })), []);
  assert.deepEqual(model.pulses(cluster('stranger')), []);
});

test('the chosen cluster is the one that was chosen, else the newest that is up', () => {
  const { server, model } = live(
    cluster('old', { created: 1 }),
    cluster('new', { created: 2 }),
    cluster('queued', { created: 3, up: 0 })
  );
  const chosen = [model.selected?.name];

  model.select('old');
  chosen.push(model.selected?.name);
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [], gone: ['old'] });
  chosen.push(model.selected?.name);

  assert.deepEqual(chosen, ['new', 'old', 'new']);
});

test('time is told by the clock of the server', () => {
  const { server, model } = live();
  const ahead = Date.now() / 1000 + 1000;

  server.socket.receive({ type: 'pulse', pulses: {}, time: ahead });

  assert.ok(model.now() >= ahead);
});

test('a cluster has ended if it is not told of any more, and can be known to be', () => {
  const { server, model } = live(cluster('a'));
  assert.ok(!model.hasEnded('a'));

  const unreadable = [{ name: 'a', error: 'no permission' }];
  server.socket.receive({
    type: 'changed',
    ...NOTHING,
    clusters: [],
    gone: ['a'],
    broken: unreadable
  });
  assert.ok(!model.hasEnded('a'));

  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [] });
  assert.ok(model.hasEnded('a'));

  server.socket.drop();
  assert.ok(!model.hasEnded('a'));
});

test('a cluster is over when another one has its name, and not while its record cannot be read', () => {
  const { server, model } = live(cluster('a'));
  const a = cluster('a');
  assert.ok(!model.hasClusterEnded(a));

  const broken = [{ name: 'a', error: 'no permission' }];
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [], gone: ['a'], broken });
  assert.ok(!model.hasClusterEnded(a));

  const again = cluster('a', { id: 'another' });
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [again] });
  assert.ok(model.hasClusterEnded(a));

  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [], gone: ['a'] });
  assert.ok(model.hasClusterEnded(a));
});

test('the clusters that have ended stay known until there is another one', () => {
  const { server, model } = live(cluster('a'));
  assert.deepEqual(model.ended, []);

  const ended = [gone('a')];
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [], gone: ['a'], ended });
  server.socket.receive({ type: 'changed', ...NOTHING, clusters: [cluster('b')] });

  assert.deepEqual(model.ended, ended);
  server.socket.receive({ type: 'state', ...state(), ended: [] });
  assert.deepEqual(model.ended, []);
});

test('a page that is older than its server is said to be', () => {
  const { server, model } = live();
  assert.equal(model.isOutdated, false);

  server.socket.receive({ type: 'state', ...state(), version: '2' });

  assert.equal(model.isOutdated, true);
});
