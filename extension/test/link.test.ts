import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Link } from '../src/model/link';
import { FakeServer } from './support/fakes';

function linked(random = 1) {
  const server = new FakeServer();
  const waits: number[] = [];
  const received: string[] = [];
  const link = new Link({
    connect: server.connect,
    opened: () => undefined,
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
  server.socket.tell({ type: 'pulse', pulses: {}, time: 0 });
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

test('who hurries connects at once, and only once', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link } = linked();
  server.socket.drop();

  link.hurry();
  link.hurry();
  context.mock.timers.tick(30_000);

  assert.equal(server.sockets.length, 2);
});

test('what an old connection still tells is not heard', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, received, waits } = linked();
  const old = server.socket;
  old.drop();
  context.mock.timers.tick(1000);

  old.tell({ type: 'pulse', pulses: {}, time: 0 });
  old.drop();

  assert.deepEqual([received, waits], [[], [1]]);
});

test('a link that was closed is not opened again', context => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { server, link } = linked();
  server.socket.open();

  link.close();
  server.socket.drop();
  context.mock.timers.tick(60_000);
  link.send('a word');

  assert.deepEqual([server.sockets.length, server.socket.isClosed, link.isOpen], [1, true, false]);
  assert.deepEqual(server.socket.heard, []);
});
