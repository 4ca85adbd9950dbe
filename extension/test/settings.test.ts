import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Signal } from '@lumino/signaling';

import { Settings } from '../src/model/settings';

test('what a user chooses is known at once, and who listens hears of it', () => {
  const stored = {
    composite: { warnMinutes: 20 },
    changed: new Signal<unknown, unknown>({})
  };
  const settings = new Settings();
  const heard: number[] = [];
  settings.changed.connect(({ warnMinutes }) => heard.push(warnMinutes));

  settings.follow(stored);
  stored.composite = { warnMinutes: 30 };
  stored.changed.emit(undefined);

  assert.deepEqual(heard, [20, 30]);
  assert.equal(settings.dashboardPage, 'overview', 'what is not chosen is as before');
});
