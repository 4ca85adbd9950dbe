import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { Latest } from '../src/cluster-form/debouncedRequest';

function asking(context: TestContext) {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const asked: {
    question: string;
    signal: AbortSignal;
    answer: (text: string) => void;
    fail: () => void;
  }[] = [];
  const told: string[] = [];
  const latest = new Latest<string, string>({
    ask: (question, signal) =>
      new Promise((answer, reject) => {
        asked.push({
          question,
          signal,
          answer,
          fail: () => {
            reject(new Error(`no ${question}`));
          }
        });
      }),
    answered: answer => told.push(answer),
    failed: error => told.push(String(error)),
    wait: 400
  });
  return {
    latest,
    asked,
    told,
    tick: (time: number) => {
      context.mock.timers.tick(time);
    }
  };
}

test('only the last of what is typed quickly is asked', context => {
  const { latest, asked, tick } = asking(context);

  latest.put('1');
  tick(399);
  latest.put('12');
  tick(399);
  assert.equal(asked.length, 0);
  tick(1);

  assert.deepEqual(
    asked.map(its => its.question),
    ['12']
  );
});

test('an answer that comes after another question is dropped', async context => {
  const { latest, asked, told, tick } = asking(context);
  latest.put('old');
  tick(400);
  latest.put('new');
  tick(400);

  asked[1]?.answer('of the new one');
  asked[0]?.answer('of the old one');
  await latest.settled();
  await Promise.resolve();

  assert.deepEqual(told, ['of the new one']);
});

test('a question that waits makes the answer to an earlier one old', async context => {
  const { latest, asked, told, tick } = asking(context);
  latest.put('old');
  tick(400);
  latest.put('new');

  asked[0]?.answer('of the old one');
  const settled = latest.settled();
  asked[1]?.answer('of the new one');
  await settled;

  assert.deepEqual(told, ['of the new one']);
});

test('who cannot wait has it asked at once, and waits for the answer', async context => {
  const { latest, asked, told } = asking(context);
  latest.put('now');

  const settled = latest.settled();
  assert.deepEqual(
    asked.map(its => its.question),
    ['now']
  );
  assert.ok(latest.isPending);
  asked[0]?.answer('here');
  await settled;

  assert.deepEqual(told, ['here']);
  assert.ok(!latest.isPending);
});

test('a question that fails is told of, and not asked again', async context => {
  const { latest, asked, told } = asking(context);
  latest.put('this');

  const settled = latest.settled();
  asked[0]?.fail();
  await settled;

  assert.deepEqual(told, ['Error: no this']);
  assert.equal(asked.length, 1);
});

test('nothing is asked or told after the end', async context => {
  const { latest, asked, told, tick } = asking(context);
  latest.put('asked');
  tick(400);
  latest.put('waits');

  latest.dispose();
  asked[0]?.answer('late');
  tick(1000);
  await latest.settled();

  assert.equal(asked.length, 1);
  assert.deepEqual(told, []);
});

test('a question is given up when there is another one, or when nobody asks any more', context => {
  const { latest, asked, tick } = asking(context);
  const isGivenUp = () => asked.map(its => its.signal.aborted);

  latest.put('1');
  tick(400);
  assert.deepEqual(isGivenUp(), [false]);
  latest.put('12');
  assert.deepEqual(isGivenUp(), [true]);
  tick(400);
  assert.deepEqual(isGivenUp(), [true, false]);

  latest.dispose();
  assert.deepEqual(isGivenUp(), [true, true]);
});
