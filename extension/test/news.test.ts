import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { ICluster, IStart } from '../src/contract';
import { Reporter } from '../src/model/news';
import { cluster } from './support/fakes';

/** Return the kinds of what is told of one cluster after another. */
function kinds(...moments: (ICluster | null)[]): string[][] {
  const reporter = new Reporter();
  return moments.map(its =>
    reporter.report(its ? [its] : [], [], 1000, 600).map(news => news.kind)
  );
}

test('a cluster that becomes ready is told, once', () => {
  const starting = cluster('a', { state: 'starting', up: 0 });

  assert.deepEqual(kinds(starting, cluster('a'), cluster('a')), [[], ['ready'], []]);
});

test('a cluster that comes ready is told, but not one that is there when one comes', () => {
  assert.deepEqual(kinds(null, cluster('a')), [[], ['ready']]);
  assert.deepEqual(kinds(cluster('a')), [[]]);
});

test('the end of a job is told once, also to who comes late, but not when it is over', () => {
  const soon = cluster('a', { ends: 1500 });

  assert.deepEqual(kinds(soon, soon, { ...soon, up: 3, state: 'degraded' }), [
    ['ends'],
    [],
    ['lost']
  ]);
  assert.deepEqual(kinds(cluster('a', { ends: 1601 })), [[]]);
  assert.deepEqual(kinds(cluster('a', { ends: 999 })), [[]]);
  assert.deepEqual(kinds(cluster('a', { ends: 1500, up: 0 })), [[]]);
});

test('a lost rank is told, unless somebody scales, restarts or ends the cluster', () => {
  const whole = cluster('a');

  assert.deepEqual(kinds(whole, cluster('a', { up: 3, state: 'degraded' })), [[], ['lost']]);
  assert.deepEqual(kinds(whole, cluster('a', { up: 2, ranks: 2 })), [[], []]);
  assert.deepEqual(kinds(whole, cluster('a', { up: 0, busy: 'restarting' })), [[], []]);
  assert.deepEqual(kinds(whole, cluster('a', { up: 0, state: 'closing' })), [[], []]);
});

test('a world that is whole again is not told as a new cluster', () => {
  const moments = [cluster('a'), cluster('a', { up: 3, state: 'degraded' }), cluster('a')];

  assert.deepEqual(kinds(...moments), [[], ['lost'], []]);
});

test('a failure is told, and an action that has failed with it', () => {
  assert.deepEqual(kinds(cluster('a'), cluster('a', { state: 'failed', up: 0 })), [[], ['failed']]);
  const refused = cluster('a', { error: 'no' });
  assert.deepEqual(kinds(cluster('a'), refused, refused), [[], ['error'], []]);
});

test('another cluster of the same name has news of its own', () => {
  assert.deepEqual(kinds(cluster('a'), cluster('a', { id: 'another' })), [[], ['ready']]);
});

test('a start that fails is told once', () => {
  const start: IStart = { id: '1', name: null, state: 'starting', message: '', log: '', since: 0 };
  const failed: IStart = { ...start, state: 'failed' };
  const reporter = new Reporter();

  const told = [[], [start], [failed], [failed]].map(
    starts => reporter.report([], starts, 0, 0).length
  );

  assert.deepEqual(told, [0, 0, 1, 0]);
});
