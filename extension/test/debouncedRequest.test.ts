import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { DebouncedRequest } from '../src/cluster-form/debouncedRequest';

function setUp(context: TestContext) {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const requests: {
    question: string;
    signal: AbortSignal;
    reply: (text: string) => void;
    fail: () => void;
  }[] = [];
  const reports: string[] = [];
  const debounced = new DebouncedRequest<string, string>({
    send: (question, signal) =>
      new Promise((answer, reject) => {
        requests.push({
          question,
          signal,
          reply: answer,
          fail: () => {
            reject(new Error(`no ${question}`));
          }
        });
      }),
    onReply: answer => reports.push(answer),
    onError: error => reports.push(String(error)),
    delay: 400
  });
  return {
    latest: debounced,
    asked: requests,
    told: reports,
    tick: (time: number) => {
      context.mock.timers.tick(time);
    }
  };
}

test('only the last of what is typed quickly is asked', context => {
  const { latest, asked, tick } = setUp(context);

  latest.invoke('1');
  tick(399);
  latest.invoke('12');
  tick(399);
  assert.equal(asked.length, 0);
  tick(1);

  assert.deepEqual(
    asked.map(request => request.question),
    ['12']
  );
});

test('an answer that comes after another question is dropped', async context => {
  const { latest, asked, told, tick } = setUp(context);
  latest.invoke('old');
  tick(400);
  latest.invoke('new');
  tick(400);

  asked[1]?.reply('of the new one');
  asked[0]?.reply('of the old one');
  await latest.flush();
  await Promise.resolve();

  assert.deepEqual(told, ['of the new one']);
});

test('a question that waits makes the answer to an earlier one old', async context => {
  const { latest, asked, told, tick } = setUp(context);
  latest.invoke('old');
  tick(400);
  latest.invoke('new');

  asked[0]?.reply('of the old one');
  const settled = latest.flush();
  asked[1]?.reply('of the new one');
  await settled;

  assert.deepEqual(told, ['of the new one']);
});

test('who cannot wait has it asked at once, and waits for the answer', async context => {
  const { latest, asked, told } = setUp(context);
  latest.invoke('now');

  const settled = latest.flush();
  assert.deepEqual(
    asked.map(request => request.question),
    ['now']
  );
  assert.ok(latest.isPending);
  asked[0]?.reply('here');
  await settled;

  assert.deepEqual(told, ['here']);
  assert.ok(!latest.isPending);
});

test('a question that fails is told of, and not asked again', async context => {
  const { latest, asked, told } = setUp(context);
  latest.invoke('this');

  const settled = latest.flush();
  asked[0]?.fail();
  await settled;

  assert.deepEqual(told, ['Error: no this']);
  assert.equal(asked.length, 1);
});

test('nothing is asked or told after the end', async context => {
  const { latest, asked, told, tick } = setUp(context);
  latest.invoke('asked');
  tick(400);
  latest.invoke('waits');

  latest.dispose();
  asked[0]?.reply('late');
  tick(1000);
  await latest.flush();

  assert.equal(asked.length, 1);
  assert.deepEqual(told, []);
});

test('a question is given up when there is another one, or when nobody asks any more', context => {
  const { latest, asked, tick } = setUp(context);
  const aborted = () => asked.map(request => request.signal.aborted);

  latest.invoke('1');
  tick(400);
  assert.deepEqual(aborted(), [false]);
  latest.invoke('12');
  assert.deepEqual(aborted(), [true]);
  tick(400);
  assert.deepEqual(aborted(), [true, false]);

  latest.dispose();
  assert.deepEqual(aborted(), [true, true]);
});
