import assert from 'node:assert/strict';
import { test } from 'node:test';

import { LogTail } from '../src/logs/tail';
import { KEPT } from '../src/logs/text';
import { FakeLogs } from './support/logs';

function tailed(text = '') {
  const logs = new FakeLogs();
  logs.write('head', text);
  const tail = new LogTail();
  return { logs, tail, read: () => tail.read(from => logs.part('head', from)) };
}

test('a log is read to its end, and on from there', async () => {
  const { logs, tail, read } = tailed('one\n');

  assert.ok(await read());
  logs.write('head', 'two\n');
  assert.ok(await read());

  assert.equal(tail.text.toString(), 'one\ntwo\n');
  assert.deepEqual(logs.asked.at(-1), ['head', 4]);
});

test('a log to which nothing was added has nothing new', async () => {
  const { tail, read } = tailed('one\n');
  await read();

  assert.equal(await read(), false);
  assert.equal(tail.text.toString(), 'one\n');
});

test('a log of several parts is read with one call', async () => {
  const text = 'a line\n'.repeat(100_000);
  const { logs, tail, read } = tailed(text);

  await read();

  assert.equal(tail.text.toString(), text);
  assert.equal(tail.size, text.length);
  assert.equal(logs.asked.length, 3);
});

test('of a long log only the end is asked for, and shown from the begin of a line', async () => {
  const text = 'what is a line\n'.repeat(200_000);
  const { logs, tail, read } = tailed(text);

  await read();

  assert.deepEqual(logs.asked[0], ['head', -KEPT]);
  assert.equal(logs.asked.length, 4);
  assert.ok(tail.text.isCut);
  assert.ok(tail.text.toString().startsWith('what is'));
  assert.ok(text.endsWith(tail.text.toString()));
});

test('a log that was begun anew is read from its begin', async () => {
  const { logs, tail, read } = tailed('the first life of the cluster\n');
  await read();

  logs.texts.set('head', 'the second\n');
  assert.ok(await read());

  assert.equal(tail.text.toString(), 'the second\n');
  assert.ok(!tail.text.isCut);
});

test('what has grown by more than is kept is read at its end only, without what came before the gap', async () => {
  const { logs, tail, read } = tailed('long ago\n');
  await read();

  logs.write('head', 'noise of a line\n'.repeat(300_000));
  await read();

  assert.ok(tail.text.isCut);
  assert.ok(tail.text.toString().startsWith('noise'));
  assert.ok(logs.asked.length < 8);
});

test('a part that fails leaves what was read, and the next read goes on there', async () => {
  const { logs, tail, read } = tailed('one\n');
  await read();
  logs.write('head', 'two\n');

  logs.trouble = new Error('the network is down');
  await assert.rejects(read);
  logs.trouble = null;
  await read();

  assert.equal(tail.text.toString(), 'one\ntwo\n');
});
