import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { Turns } from '../src/logs/turns';

// What is waited for is promises, never the clock, which is a fake.
const turn = () => new Promise(resolve => setImmediate(resolve));

function taking(context: TestContext) {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const its = { taken: 0, goesOn: true, isWanted: true, fails: false };
  const turns = new Turns({
    turn: () => {
      its.taken += 1;
      return its.fails ? Promise.reject(new Error('down')) : Promise.resolve(its.goesOn);
    },
    isWanted: () => its.isWanted,
    every: 1000
  });
  const pass = async (time: number) => {
    context.mock.timers.tick(time);
    await turn();
  };
  return { turns, its, pass };
}

test('turns are taken every so often once awake', async context => {
  const { turns, its, pass } = taking(context);
  turns.wake();
  await turn();

  await pass(1000);
  await pass(999);
  assert.equal(its.taken, 2);
  await pass(1);

  assert.equal(its.taken, 3);
});

test('turns end when nothing more is to come, and begin again when woken', async context => {
  const { turns, its, pass } = taking(context);
  its.goesOn = false;
  turns.wake();
  await turn();
  await pass(60_000);
  assert.equal(its.taken, 1);

  turns.wake();
  await turn();

  assert.equal(its.taken, 2);
});

test('no turn follows one that nobody wants any more', async context => {
  const { turns, its, pass } = taking(context);
  turns.wake();
  its.isWanted = false;
  await turn();

  await pass(60_000);

  assert.equal(its.taken, 1);
});

test('turns that fail are taken more and more seldom, and often again after one that does not', async context => {
  const { turns, its, pass } = taking(context);
  its.fails = true;
  turns.wake();
  await turn();

  for (const wait of [2000, 4000, 8000, 16_000, 30_000, 30_000]) {
    const before = its.taken;
    await pass(wait - 1);
    assert.equal(its.taken, before);
    await pass(1);
    assert.equal(its.taken, before + 1);
  }

  its.fails = false;
  await pass(30_000);
  const before = its.taken;
  await pass(1000);
  assert.equal(its.taken, before + 1);
});

test('who is woken within a turn takes one more after it, never two at a time', async context => {
  const { turns, its } = taking(context);

  turns.wake();
  turns.wake();
  turns.wake();
  assert.equal(its.taken, 1);
  await turn();

  assert.equal(its.taken, 2);
});

test('no turn is taken after the end', async context => {
  const { turns, its, pass } = taking(context);
  turns.wake();
  await turn();

  turns.dispose();
  turns.wake();
  await pass(60_000);

  assert.equal(its.taken, 1);
});
