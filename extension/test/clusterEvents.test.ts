import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { ICluster, IEnded, IStart } from '../src/contract';
import { ClusterEventDetector } from '../src/notifications/clusterEvents';
import { cluster, gone } from './support/fakes';
import { start } from './support/forms';

/** Return the kinds of what is told of one cluster after another. */
function kinds(...moments: (ICluster | null)[]): string[][] {
  const reporter = new ClusterEventDetector();
  return moments.map(cluster =>
    reporter.detect(cluster ? [cluster] : [], [], 1000, 600).map(news => news.kind)
  );
}

test('a cluster that becomes ready is told, once', () => {
  const starting = cluster('a', { state: 'starting', up: 0 });

  assert.deepEqual(kinds(starting, cluster('a'), cluster('a')), [[], ['ready'], []]);
});

test('a cluster that comes ready is told, but not one that is there when one comes', () => {
  assert.deepEqual(kinds(null, cluster('a', { created: 1001 })), [[], ['ready']]);
  assert.deepEqual(kinds(cluster('a')), [[]]);
});

test('clusters that cannot be read for a moment are no news when they are there again', () => {
  const soon = cluster('a', { ends: 1500 });

  assert.deepEqual(kinds(soon, null, soon), [['ends'], [], []]);
  assert.deepEqual(kinds(null, cluster('a', { created: 999 })), [[], []]);
  const late = cluster('a', { created: 1001 });
  assert.deepEqual(kinds(null, late, null, late), [[], ['ready'], [], []]);
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

test('a world that dies rank by rank is told once', () => {
  const dying = [4, 3, 2, 1].map(up => cluster('a', { up, state: up < 4 ? 'degraded' : 'ready' }));

  assert.deepEqual(kinds(...dying), [[], ['lost'], [], []]);
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
  assert.deepEqual(kinds(cluster('a'), cluster('a', { id: 'another', created: 1001 })), [
    [],
    ['ready']
  ]);
});

test('clusters that have gone are forgotten, the oldest first, but none that is there', () => {
  const reporter = new ClusterEventDetector();
  const ready = (name: string) => cluster(name, { created: 1001 });
  const detect = (...there: ICluster[]) =>
    reporter.detect(there, [], 1000, 0).map(news => news.name);
  detect();
  assert.deepEqual(detect(ready('stays'), ready('first')), ['stays', 'first']);

  for (let each = 0; each < 2100; each++) {
    detect(ready('stays'), ready(`its ${each}`));
  }

  assert.deepEqual(detect(ready('stays'), ready('its 2099'), ready('its 300')), []);
  assert.deepEqual(detect(ready('first')), ['first'], 'each that is known takes memory');
});

/** Return the kinds and names of what is told of one list of starts after another. */
function ofStarts(...moments: IStart[][]): string[][] {
  const reporter = new ClusterEventDetector();
  return moments.map(starts =>
    reporter.detect([], starts, 1000, 0).map(event => `${event.kind}: ${event.name}`)
  );
}

test('a start that fails is told once, and without a name if it has none', () => {
  const begun = start({ since: 900 });
  const failed = start({ since: 900, state: 'failed' });

  assert.deepEqual(ofStarts([], [begun], [failed], [], [failed]), [
    [],
    [],
    ['start-failed: '],
    [],
    []
  ]);
});

test('a start whose form the user can see is no event, also when the form is closed later', () => {
  const detector = new ClusterEventDetector();
  const failed = start({ state: 'failed', since: 1001 });
  detector.detect([], [], 1000, 0);

  assert.deepEqual(detector.detect([], [failed], 1000, 0, [], failed.id), []);
  assert.deepEqual(detector.detect([], [failed], 1000, 0), []);
});

test('a start that has failed before one comes is not told, one that fails at once is', () => {
  const old = start({ id: 'old', state: 'failed', since: 900 });
  const late = start({ id: 'late', name: 'b', state: 'failed', since: 1001 });

  assert.deepEqual(ofStarts([old], [old, late], [], [late]), [[], ['start-failed: b'], [], []]);
  assert.deepEqual(ofStarts([], [old]), [[], []]);
});

test('a start that fails is not told once more of its cluster', () => {
  const reporter = new ClusterEventDetector();
  const starting = cluster('a', { created: 1001, state: 'starting', up: 0 });
  const begun = start({ name: 'a', since: 1001 });
  reporter.detect([starting], [begun], 1000, 0);

  const news = reporter.detect(
    [{ ...starting, state: 'failed' }],
    [{ ...begun, state: 'failed' }],
    1000,
    0
  );

  assert.deepEqual(
    news.map(event => event.kind),
    ['start-failed']
  );
});

/** Return what is told at the last of some moments, each with clusters, those that have ended, and starts. */
function atLast(...moments: [ICluster[], IEnded[], IStart[]?][]): string[] {
  const reporter = new ClusterEventDetector();
  return moments
    .map(([clusters, ended, starts = []]) => reporter.detect(clusters, starts, 1000, 0, ended))
    .map(news => news.map(event => `${event.kind}: ${event.ended?.reason ?? ''}`))
    .reduce((_, last) => last);
}

test('the end of a cluster is told with its reason, once', () => {
  const there: [ICluster[], IEnded[]] = [[cluster('a')], []];

  assert.deepEqual(atLast(there, [[], [gone('a')]]), ['ended: its head is gone']);
  assert.deepEqual(atLast(there, [[], [gone('a')]], [[], [gone('a')]]), []);
  const idle = gone('a', { state: 'ended', reason: 'no client for 3600 s', when: 999 });
  assert.deepEqual(atLast(there, [[], [idle]]), ['ended: no client for 3600 s']);
});

test('the end of a cluster that came and went between two looks is told', () => {
  assert.deepEqual(atLast([[], []], [[], [gone('a')]]), ['ended: its head is gone']);
});

test('an end that one does not have to be told is no news', () => {
  const there: [ICluster[], IEnded[]] = [[cluster('a')], []];

  // its user has stopped it, here or elsewhere
  assert.deepEqual(atLast(there, [[], [gone('a', { state: 'stopped' })]]), []);
  assert.deepEqual(atLast([[cluster('a', { busy: 'stopping' })], []], [[], [gone('a')]]), []);
  // it was over when the page was opened
  assert.deepEqual(atLast([[], [gone('a')]]), []);
  assert.deepEqual(atLast([[], [gone('a')]], [[], [gone('a')]]), []);
  // its failure, or that of its start, was told
  assert.deepEqual(atLast(there, [[cluster('a', { state: 'failed' })], []], [[], [gone('a')]]), []);
  const failed = start({ name: 'a', state: 'failed', since: 50 });
  assert.deepEqual(atLast([[], [], [failed]], [[], [gone('a')], [failed]]), []);
});
