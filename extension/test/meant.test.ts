import assert from 'node:assert/strict';
import { test } from 'node:test';

import { meant } from '../src/model/meant';
import { cluster, live } from './support/fakes';

test('a command means the cluster that is named, else the chosen one', () => {
  const { model } = live(cluster('old'), cluster('new', { created: 200 }));

  assert.equal(meant({ model }, { name: 'old' })?.name, 'old');
  assert.equal(meant({ model }, { name: 'none' }), undefined);
  assert.equal(meant({ model }, {})?.name, 'new');
});

test('the menu of a card whose cluster ends is not about another cluster', () => {
  const { server, model } = live(cluster('old'), cluster('new', { created: 200 }));
  model.choose('old');
  assert.equal(meant({ model }, { isCard: true })?.name, 'old');

  const nothing = { broken: [], starts: [], ended: [], time: 0 };
  server.socket.tell({ type: 'changed', clusters: [], gone: ['old'], ...nothing });

  assert.equal(model.chosen?.name, 'new');
  assert.equal(meant({ model }, { isCard: true }), undefined);
});
