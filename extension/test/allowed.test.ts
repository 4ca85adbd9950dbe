import assert from 'node:assert/strict';
import { test } from 'node:test';

import { isChangeable, isStoppable, isUp } from '../src/model/allowed';
import { cluster } from './support/fakes';

test('a cluster is up that has ranks and is not about to end', () => {
  assert.ok(isUp(cluster('a')));
  assert.ok(isUp(cluster('a', { up: 1, state: 'degraded', busy: 'scaling' })));
  assert.ok(!isUp(cluster('a', { up: 0, state: 'queued' })));
  assert.ok(!isUp(cluster('a', { state: 'closing' })));
  assert.ok(!isUp(undefined));
});

test('one thing at a time is done to the ranks of a cluster that is up', () => {
  assert.ok(isChangeable(cluster('a')));
  assert.ok(!isChangeable(cluster('a', { busy: 'restarting' })));
  assert.ok(!isChangeable(cluster('a', { up: 0, state: 'queued' })));
  assert.ok(!isChangeable(undefined));
});

test('a cluster can be stopped whatever it does, but once', () => {
  assert.ok(isStoppable(cluster('a', { up: 0, state: 'queued' })));
  assert.ok(isStoppable(cluster('a', { busy: 'scaling' })));
  assert.ok(!isStoppable(cluster('a', { busy: 'stopping' })));
  assert.ok(!isStoppable(undefined));
});
