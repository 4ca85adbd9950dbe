import assert from 'node:assert/strict';
import { test } from 'node:test';

import { isChangeable, isStoppable, isUp, resolveCluster } from '../src/model/permissions';
import { cluster, live } from './support/fakes';

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

test('a command means the cluster that is named, else the chosen one', () => {
  const { model } = live(cluster('old'), cluster('new', { created: 200 }));

  assert.equal(resolveCluster({ model }, { name: 'old' })?.name, 'old');
  assert.equal(resolveCluster({ model }, { name: 'none' }), undefined);
  assert.equal(resolveCluster({ model }, {})?.name, 'new');
});

test('the menu of a card whose cluster ends is not about another cluster', () => {
  const { server, model } = live(cluster('old'), cluster('new', { created: 200 }));
  model.select('old');
  assert.equal(resolveCluster({ model }, { isCard: true })?.name, 'old');

  const nothing = { broken: [], starts: [], ended: [], time: 0 };
  server.socket.receive({ type: 'changed', clusters: [], gone: ['old'], ...nothing });

  assert.equal(model.selected?.name, 'new');
  assert.equal(resolveCluster({ model }, { isCard: true }), undefined);
});
