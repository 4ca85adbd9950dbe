import assert from 'node:assert/strict';
import { test } from 'node:test';

import { noteOf } from '../src/logs/note';
import { LogTail } from '../src/logs/tail';
import { trans } from './support/words';

async function note(text: string, its: { isGone?: boolean; isOver?: boolean }): Promise<string> {
  const tail = new LogTail();
  await tail.read(() => Promise.resolve({ text, next: text.length, size: text.length }));
  return noteOf({ tail, isGone: false, isOver: false, ...its }, trans);
}

test('a log of a cluster that is there speaks for itself, unless it is empty', async () => {
  assert.equal(await note('a line', {}), '');
  assert.match(await note('', {}), /nothing in it yet/);
});

test('of a cluster that has ended nothing more is expected', async () => {
  assert.match(await note('a line', { isOver: true }), /what it left/);
  assert.match(await note('', { isOver: true }), /has left nothing/);
});

test('logs that were removed are said to be, and what was read of them stays', async () => {
  assert.match(await note('a line', { isOver: true, isGone: true }), /removed; this was read/);
  assert.match(await note('', { isOver: true, isGone: true }), /have been removed\.$/);
});
