import { Signal } from '@lumino/signaling';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { persistSelection, Settings } from '../src/model/settings';
import { cluster, live } from './support/fakes';

/** What is remembered. */
class Memory {
  constructor(public kept?: unknown) {}

  readonly fetch = () => Promise.resolve(this.kept);
  readonly save = (_: string, value: string) => {
    this.kept = value;
    return Promise.resolve();
  };
}

test('the cluster that was chosen is the chosen one at the next visit', async () => {
  const memory = new Memory();
  const clusters = [cluster('old'), cluster('new', { created: 200 })];
  const before = live(...clusters).model;
  await persistSelection(before, memory);
  assert.deepEqual([before.selected?.name, memory.kept], ['new', undefined]);
  before.select('old');

  const { model } = live(...clusters);
  await persistSelection(model, memory);

  assert.equal(model.selected?.name, 'old');
});

test('what is chosen before the last choice is known counts', async () => {
  const { model } = live(cluster('old'), cluster('new'));
  const memory = new Memory('old');
  const recalled = persistSelection(model, memory);
  model.select('new');

  await recalled;

  assert.deepEqual([model.selectedName, memory.kept], ['new', 'new']);
});

test('one can choose where nothing is remembered', async () => {
  const { model } = live(cluster('a'));
  const fails = () => Promise.reject(new Error('no'));

  await persistSelection(model, { fetch: fails, save: fails });
  model.select('a');

  assert.equal(model.selectedName, 'a');
});

test('what a user chooses is known at once, and who listens hears of it', () => {
  const stored = {
    composite: { warnMinutes: 20 },
    changed: new Signal<unknown, unknown>({})
  };
  const settings = new Settings();
  const values: number[] = [];
  settings.changed.connect(({ warnMinutes }) => values.push(warnMinutes));

  settings.load(stored);
  stored.composite = { warnMinutes: 30 };
  stored.changed.emit(undefined);

  assert.deepEqual(values, [20, 30]);
  assert.equal(settings.dashboardPage, 'overview', 'what is not chosen is as before');
});
