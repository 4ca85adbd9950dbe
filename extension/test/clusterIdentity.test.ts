import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ClusterIdentity } from '../src/model/clusterIdentity';

/** Return what shows a cluster of this identity. */
function showing(id: string): ClusterIdentity {
  const shown = new ClusterIdentity();
  shown.update(id);
  return shown;
}

test('a page that comes back before its cluster is known is not loaded again for that', () => {
  const shown = new ClusterIdentity();

  assert.ok(!shown.update('a'));
  assert.ok(!shown.update('a'));
  assert.ok(!shown.hasEnded);
});

test('a page that comes back before its cluster is up is loaded again once it is', () => {
  const shown = new ClusterIdentity();
  shown.markPending();
  assert.ok(!shown.isKnown);

  assert.ok(shown.update('a'));
  assert.ok(!shown.update('a'));
});

test('a page of a cluster that has ended before it was up has shown nothing of it', () => {
  const shown = new ClusterIdentity();
  shown.markPending();

  assert.ok(!shown.update(undefined));
  assert.ok(shown.hasEnded && !shown.isKnown);
});

test('a page that shows its cluster is not loaded again when that has no ranks for a while', () => {
  const shown = showing('a');
  shown.markPending();

  assert.ok(!shown.update('a'));
});

test('a page of a cluster that has ended stays, and is loaded again when there is another one', () => {
  const shown = showing('a');

  assert.ok(!shown.update(undefined));
  shown.markPending();
  assert.ok(shown.hasEnded && shown.isKnown);
  assert.ok(shown.update('b'));
  assert.ok(!shown.hasEnded);
});

test('a page that has never shown its cluster is loaded when there is one', () => {
  const shown = new ClusterIdentity();

  assert.ok(!shown.update(undefined));
  assert.ok(shown.hasEnded && !shown.isKnown);
  assert.ok(shown.update('a'));
});

test('a page of a name that was given again at once is loaded again', () => {
  assert.ok(showing('a').update('b'));
});
