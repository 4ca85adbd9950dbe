import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ApiError } from '../src/api';
import { ClustersModel } from '../src/model/clusters';
import { cluster, FakeServer, live, names, settled, state } from './support/fakes';

test('the server hears whether somebody looks: once when the first comes, once when the last goes', () => {
  const { server, model } = live();

  const one = model.watch();
  const other = model.watch();
  one.dispose();
  other.dispose();
  other.dispose();

  assert.deepEqual(server.socket.received, [{ visible: true }, { visible: false }]);
});

test('the server hears whose pulses are seen: those of one cluster, or all', () => {
  const { server, model } = live();

  const ofBar = model.watch('mpi');
  const same = model.watch('mpi');
  const panel = model.watch();
  panel.dispose();
  same.dispose();
  const other = model.watch('big');
  ofBar.dispose();
  other.dispose();

  assert.deepEqual(
    server.socket.received,
    [['mpi'], true, ['mpi'], ['big', 'mpi'], ['big'], false].map(visible => ({ visible }))
  );
});

test('the server hears that somebody looks as soon as there is a connection', () => {
  const server = new FakeServer();
  const model = new ClustersModel(server);
  model.watch();
  model.start();
  assert.deepEqual(server.socket.received, []);

  server.socket.open();

  assert.deepEqual(server.socket.received, [{ visible: true }]);
  model.dispose();
});

test('a connection that is lost is said, and made again, and somebody still looks', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, model } = live(cluster('a'));
  model.watch();

  server.socket.drop();
  await settled();
  assert.deepEqual(
    [model.connectionState, model.connectionError],
    ['reconnecting', 'the network is down']
  );
  assert.deepEqual(names(model), ['a']);

  context.mock.timers.tick(1000);
  server.socket.open();
  server.socket.receive({ type: 'state', ...state(cluster('b')) });

  assert.equal(server.sockets.length, 2);
  assert.deepEqual(server.socket.received, [{ visible: true }]);
  assert.deepEqual(
    [model.connectionState, model.connectionError, ...names(model)],
    ['live', '', 'b']
  );
});

test('while no websocket can be opened, requests tell how things stand', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const server = new FakeServer();
  const model = new ClustersModel(server, () => 1);
  server.answer = () => Promise.resolve(state(cluster('a')));
  model.start();

  server.socket.drop();
  await settled();

  assert.deepEqual([model.connectionState, ...names(model)], ['reconnecting', 'a']);
});

test('an answer that comes after the websocket is of no interest', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, model } = live(cluster('new'));
  let answer: (reply: ReturnType<typeof state>) => void = () => undefined;
  server.answer = () =>
    new Promise(resolve => {
      answer = resolve;
    });
  server.socket.drop();
  context.mock.timers.tick(1000);
  server.socket.open();
  server.socket.receive({ type: 'state', ...state(cluster('new')) });

  answer(state(cluster('old')));
  await settled();

  assert.deepEqual([model.connectionState, ...names(model)], ['live', 'new']);
});

test('an answer that comes after that to a later question is of no interest', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, model } = live(cluster('first'));
  const answers: ((reply: ReturnType<typeof state>) => void)[] = [];
  server.answer = () =>
    new Promise(resolve => {
      answers.push(resolve);
    });
  server.socket.drop();
  context.mock.timers.tick(1000);
  server.socket.drop();
  const [old, late] = answers;

  late?.(state(cluster('new')));
  await settled();
  old?.(state(cluster('old')));
  await settled();

  assert.equal(answers.length, 2);
  assert.deepEqual(names(model), ['new']);
  model.dispose();
});

test('a server without the extension is known by its 404, one that refuses by its 403', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  for (const [status, expected] of [
    [404, 'missing'],
    [403, 'refused'],
    [502, 'reconnecting']
  ] as const) {
    const server = new FakeServer();
    const model = new ClustersModel(server);
    server.answer = () => Promise.reject(new ApiError(status, 'no'));
    model.start();

    server.socket.drop();
    await settled();

    assert.deepEqual([model.connectionState, model.connectionError], [expected, 'no']);
  }
});

test('a server that never had the extension is asked once more only by who tries', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const server = new FakeServer();
  const model = new ClustersModel(server);
  server.answer = () => Promise.reject(new ApiError(404, 'no'));
  model.start();
  server.socket.drop();
  await settled();

  context.mock.timers.tick(60_000);
  assert.deepEqual([server.sockets.length, server.asked], [1, 1]);

  model.retry();
  server.socket.open();
  server.socket.receive({ type: 'state', ...state(cluster('a')) });
  assert.deepEqual([server.sockets.length, model.connectionState], [2, 'live']);

  // one that had it may be between two starts
  server.socket.drop();
  await settled();
  context.mock.timers.tick(60_000);
  assert.equal(server.sockets.length, 3);
  model.dispose();
});

test('two starts are one connection', () => {
  const server = new FakeServer();
  const model = new ClustersModel(server);

  model.start();
  model.start();

  assert.equal(server.sockets.length, 1);
});

test('a model that was disposed of is silent', async context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, model } = live(cluster('a'));

  model.dispose();
  server.socket.drop();
  await settled();
  context.mock.timers.tick(60_000);

  assert.equal(server.socket.isClosed, true);
  assert.deepEqual([server.sockets.length, server.asked], [1, 0]);
});
