import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ReconnectingSocket } from '../src/model/reconnectingSocket';
import { FakeServer } from './support/fakes';

function linked(random = 1) {
  const server = new FakeServer();
  const waits: number[] = [];
  const received: string[] = [];
  const link = new ReconnectingSocket({
    connect: server.connect,
    received: text => received.push(text),
    lost: wait => waits.push(wait),
    random: () => random
  });
  link.start();
  return { server, link, waits, received };
}

test('each try waits longer than the one before, up to half a minute', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, waits } = linked();

  for (let tries = 0; tries < 7; tries++) {
    server.socket.drop();
    context.mock.timers.tick(30_000);
  }

  assert.deepEqual(waits, [1, 2, 4, 8, 16, 30, 30]);
  assert.equal(server.sockets.length, 8);
});

test('browsers do not come back together', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, waits } = linked(0);

  server.socket.drop();

  assert.deepEqual(waits, [0.5]);
});

test('a connection that has told something is begun anew with the shortest wait', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, waits } = linked();
  server.socket.drop();
  context.mock.timers.tick(1000);

  server.socket.open();
  server.socket.receive({ type: 'pulse', pulses: {}, time: 0 });
  server.socket.drop();

  assert.deepEqual(waits, [1, 1]);
});

test('a connection that is opened and lost without a word does not shorten the wait', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, waits } = linked();
  server.socket.drop();
  context.mock.timers.tick(1000);

  server.socket.open();
  server.socket.drop();

  assert.deepEqual(waits, [1, 2]);
});

test('who hurries connects at once, also where a try hangs, and there is one connection', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link } = linked();
  server.socket.drop();

  link.reconnectNow();
  link.reconnectNow();
  server.socket.open();
  link.reconnectNow();
  context.mock.timers.tick(30_000);

  assert.deepEqual(
    server.sockets.map(socket => socket.isClosed),
    [false, true, false]
  );
  assert.ok(link.isOpen);
});

test('a connection that says nothing to who looks is given up', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link, waits } = linked();
  const { socket } = server;
  socket.open();
  link.setVisible(true);
  context.mock.timers.tick(19_000);
  socket.receive({ type: 'pulse', pulses: {}, time: 0 });
  context.mock.timers.tick(19_000);
  assert.deepEqual([link.isOpen, waits], [true, []]);

  context.mock.timers.tick(1000);
  assert.deepEqual([link.isOpen, socket.isClosed, waits], [false, true, [1]]);

  context.mock.timers.tick(1000);
  server.socket.open();
  assert.deepEqual(server.socket.received, [{ visible: true }]);
  assert.equal(server.sockets.length, 2);
});

test('a connection may be silent while nobody looks', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link } = linked();
  server.socket.open();
  link.setVisible(true);

  link.setVisible(false);
  context.mock.timers.tick(60_000);

  assert.ok(link.isOpen);
  assert.equal(server.sockets.length, 1);
});

test('what an old connection still tells is not heard', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, received, waits } = linked();
  const old = server.socket;
  old.drop();
  context.mock.timers.tick(1000);

  old.receive({ type: 'pulse', pulses: {}, time: 0 });
  old.drop();

  assert.deepEqual([received, waits], [[], [1]]);
});

test('a link that was closed is not opened again', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link } = linked();
  server.socket.open();
  link.setVisible(true);

  link.close();
  server.socket.drop();
  context.mock.timers.tick(60_000);
  link.setVisible(false);

  assert.deepEqual([server.sockets.length, server.socket.isClosed, link.isOpen], [1, true, false]);
  assert.deepEqual(server.socket.received, [{ visible: true }]);
});

test('a cluster is seen whatever its name is', () => {
  const { server, link } = linked();
  server.socket.open();

  link.setVisible(['false']);
  link.setVisible(true);
  link.setVisible(['true']);

  assert.deepEqual(server.socket.received, [
    { visible: ['false'] },
    { visible: true },
    { visible: ['true'] }
  ]);
});
