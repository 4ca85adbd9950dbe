import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Shown } from '../src/model/clusterIdentity';

/** Return what shows a cluster of this identity. */
function showing(id: string): Shown {
  const shown = new Shown();
  shown.hear(id);
  return shown;
}

test('a page that comes back before its cluster is known is not loaded again for that', () => {
  const shown = new Shown();

  assert.ok(!shown.hear('a'));
  assert.ok(!shown.hear('a'));
  assert.ok(!shown.isOver);
});

test('a page that comes back before its cluster is up is loaded again once it is', () => {
  const shown = new Shown();
  shown.wait();
  assert.ok(!shown.wasThere);

  assert.ok(shown.hear('a'));
  assert.ok(!shown.hear('a'));
});

test('a page of a cluster that has ended before it was up has shown nothing of it', () => {
  const shown = new Shown();
  shown.wait();

  assert.ok(!shown.hear(undefined));
  assert.ok(shown.isOver && !shown.wasThere);
});

test('a page that shows its cluster is not loaded again when that has no ranks for a while', () => {
  const shown = showing('a');
  shown.wait();

  assert.ok(!shown.hear('a'));
});

test('a page of a cluster that has ended stays, and is loaded again when there is another one', () => {
  const shown = showing('a');

  assert.ok(!shown.hear(undefined));
  shown.wait();
  assert.ok(shown.isOver && shown.wasThere);
  assert.ok(shown.hear('b'));
  assert.ok(!shown.isOver);
});

test('a page that has never shown its cluster is loaded when there is one', () => {
  const shown = new Shown();

  assert.ok(!shown.hear(undefined));
  assert.ok(shown.isOver && !shown.wasThere);
  assert.ok(shown.hear('a'));
});

test('a page of a name that was given again at once is loaded again', () => {
  assert.ok(showing('a').hear('b'));
});
