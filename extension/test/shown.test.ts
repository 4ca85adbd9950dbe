import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Shown } from '../src/model/shown';

test('a page that comes back before its cluster is known is not loaded again for that', () => {
  const shown = new Shown(undefined);

  assert.ok(!shown.hear('a'));
  assert.ok(!shown.hear('a'));
  assert.ok(!shown.isOver);
});

test('a page of a cluster that has ended stays, and is loaded again when there is another one', () => {
  const shown = new Shown('a');

  assert.ok(!shown.hear(undefined));
  assert.ok(shown.isOver && shown.wasThere);
  assert.ok(shown.hear('b'));
  assert.ok(!shown.isOver);
});

test('a page that has never shown its cluster is loaded when there is one', () => {
  const shown = new Shown(undefined);

  assert.ok(!shown.hear(undefined));
  assert.ok(shown.isOver && !shown.wasThere);
  assert.ok(shown.hear('a'));
});

test('a page of a name that was given again at once is loaded again', () => {
  assert.ok(new Shown('a').hear('b'));
});
