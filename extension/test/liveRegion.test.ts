import assert from 'node:assert/strict';
import { test } from 'node:test';

import { describeChanges } from '../src/panel/liveRegion';
import { trans } from './support/trans';

const describe = (before: Record<string, string>, now: Record<string, string>) =>
  describeChanges(new Map(Object.entries(before)), new Map(Object.entries(now)), trans);

test('what has changed is said, and nothing else', () => {
  const before = { a: 'ready', b: 'ready', c: 'starting' };

  assert.equal(describe(before, { b: 'ready', c: 'ready' }), 'c is ready; a has ended');
  assert.equal(describe(before, before), '');
});

test('many changes of one moment are said in a few words', () => {
  const many = { a: 'ready', b: 'ready', c: 'ready', d: 'ready' };

  assert.equal(describe(many, {}), '4 clusters have changed');
});
