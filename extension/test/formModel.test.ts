import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ApiError } from '../src/api';
import { FormModel } from '../src/cluster-form/formModel';
import type { IKernel } from '../src/contract';
import { cluster } from './support/fakes';
import { FakeClusters, FakeFormServer, form, start } from './support/forms';

const BARE: IKernel = {
  name: 'bare',
  display_name: 'Bare',
  version: null,
  hint: '/bare/python -m pip install it',
  installable: true
};

async function filled(
  change: (server: FakeFormServer) => void = () => undefined,
  memory: unknown = {}
) {
  const server = new FakeFormServer();
  change(server);
  const clusters = new FakeClusters();
  const model = new FormModel(server, clusters, 0);
  await model.load(memory);
  await checked(model);
  return { server, clusters, model };
}

const turn = () => new Promise(resolve => setImmediate(resolve));

/** Wait until what is filled in has been checked. */
async function checked(model: FormModel): Promise<void> {
  while (model.isChecking) {
    await turn();
  }
}

/** Return a form whose start the server has accepted. */
async function started() {
  const { server, clusters, model } = await filled();
  await model.start();
  assert.equal(model.startId, 's');
  return { server, clusters, model };
}

test('a form is checked as soon as it is there, and its script shown', async () => {
  const { server, model } = await filled();

  assert.deepEqual(server.checked, [{ scheduler: 'slurm', ranks: 8 }]);
  assert.equal(model.script, 'exec it');
  assert.ok(model.canStart);
});

test('what is wrong stands against a start until it is mended', async () => {
  const { server, model } = await filled();

  server.verdict = { errors: { ranks: 'too many' }, script: null };
  model.set('ranks', '999');
  await checked(model);
  assert.deepEqual(model.errors, { ranks: 'too many' });
  assert.deepEqual([model.script, model.lastScript], [null, 'exec it']);
  assert.ok(!model.canStart);
  await model.start();
  assert.deepEqual([server.started, model.isStarting], [[], false]);

  server.verdict = { errors: {}, script: 'exec it' };
  model.set('ranks', '9');
  await checked(model);
  assert.ok(model.canStart);
});

test('a start that comes before the check waits for it', async () => {
  const { server, model } = await filled();

  server.verdict = { errors: { ranks: 'none' }, script: null };
  model.set('ranks', '0');

  await model.start();
  assert.equal(server.checked.at(-1)?.ranks, 0);
  assert.deepEqual(server.started, []);
  assert.ok(!model.isStarting);
});

test('a form is locked while its start is under way, and done when its cluster is ready', async () => {
  const { clusters, model } = await started();
  const values = model.values;

  model.set('ranks', '3');
  clusters.update({ starts: [start()] });
  assert.equal(model.values, values);
  assert.deepEqual([model.isStarting, model.isComplete], [true, false]);
  clusters.update({ starts: [start({ state: 'ready' })] });

  assert.deepEqual([model.isStarting, model.isComplete, model.startId], [false, true, '']);
  assert.equal(model.failure, null);
});

test('a start is under way although the news of it come later than the answer of the server', async () => {
  const { clusters, model } = await started();

  clusters.update({ starts: [] });

  assert.ok(model.isStarting);
});

test('a form shows the cluster of its start, and no older one of the same name', async () => {
  const { clusters, model } = await started();

  clusters.update({
    starts: [start({ name: 'mpi' })],
    clusters: [cluster('mpi', { created: 99 })]
  });
  const seen = [model.cluster?.state];
  clusters.update({ clusters: [cluster('mpi', { jobs: ['17'], state: 'queued', created: 101 })] });
  seen.push(model.cluster?.state);

  assert.deepEqual(seen, [undefined, 'queued']);
  assert.ok(model.isStarting);
});

test('a start that fails leaves the form as it is, with the end of the log', async () => {
  const { server, clusters, model } = await filled();
  model.set('ranks', '3');

  await model.start();
  clusters.update({ starts: [start({ state: 'failed', message: 'no', log: 'rank 1: no' })] });

  assert.deepEqual(model.failure, { message: 'no', log: 'rank 1: no' });
  assert.equal(model.values.ranks, '3');
  assert.equal(server.started[0]?.ranks, 3);
  assert.ok(model.canStart);
});

test('a start after one that has failed dismisses that', async () => {
  const { server, clusters, model } = await started();
  clusters.update({ starts: [start({ state: 'failed' })] });

  server.answer = start({ id: 'second' });
  await model.start();

  assert.deepEqual(server.dismissed, ['s']);
  assert.deepEqual([model.startId, model.failure], ['second', null]);
});

test('a start that is cancelled leaves a form that can be changed', async () => {
  const { server, clusters, model } = await started();
  clusters.update({ starts: [start()] });

  await model.cancel();
  assert.deepEqual(server.dismissed, ['s']);
  clusters.update({ starts: [] });

  assert.deepEqual([model.isStarting, model.isComplete, model.failure], [false, false, null]);
  assert.ok(model.canStart);
});

test('a start that is cancelled before anything was heard of it locks no form', async () => {
  const { model } = await started();

  await model.cancel();

  assert.deepEqual([model.isStarting, model.startId], [false, '']);
});

test('a start that is cancelled locks no form where news come by requests alone', async () => {
  const { clusters, model } = await started();
  clusters.update({ starts: [start()], connectionState: 'reconnecting' });

  await model.cancel();
  assert.ok(model.isStarting);
  clusters.update({ starts: [] });

  assert.ok(!model.isStarting);
});

test('a start that the server has forgotten can be cancelled', async () => {
  const { server, model } = await started();
  server.dismissal = new ApiError(404, 'there is no such start');

  await model.cancel();

  assert.deepEqual([model.isStarting, model.failure], [false, null]);
});

test('what a start could not be cancelled for is forgotten with the next try', async () => {
  const { server, model } = await started();
  server.dismissal = new ApiError(504, 'no answer');
  await model.cancel();
  server.dismissal = undefined;

  await model.cancel();

  assert.deepEqual([model.isStarting, model.failure], [false, null]);
});

test('the late answer to a cancellation is not about a later start', async () => {
  const { server, clusters, model } = await started();
  clusters.update({ starts: [start()] });
  let answer: (() => void) | undefined;
  server.dismissal = new Promise(resolve => {
    answer = resolve;
  });
  const cancelled = model.cancel();
  clusters.update({ starts: [start({ state: 'failed', message: 'no' })] });
  server.answer = start({ id: 'second' });
  await model.start();

  answer?.();
  await cancelled;

  assert.deepEqual([model.startId, model.isStarting], ['second', true]);
});

test('a start that cannot be cancelled goes on, and the form reports why', async () => {
  const { server, model } = await started();
  server.dismissal = new ApiError(504, 'no answer');

  await model.cancel();

  assert.equal(model.failure?.message, 'no answer');
  assert.ok(model.isStarting);
});

test('a start of an earlier visit is followed as soon as the server reports it', async () => {
  const { clusters, model } = await filled();
  clusters.connectionState = 'connecting';

  model.trackStart('s', true);
  assert.ok(model.isStarting);
  clusters.update({ connectionState: 'live', starts: [start()] });
  assert.ok(model.isStarting);
  clusters.update({ starts: [start({ state: 'ready' })] });

  assert.ok(model.isComplete);
});

test('a start of an earlier visit that the server does not know locks no form', async () => {
  const { clusters, model } = await filled();
  clusters.connectionState = 'connecting';

  model.trackStart('s', true);
  clusters.update({ connectionState: 'live' });

  assert.deepEqual([model.isStarting, model.isComplete], [false, false]);
});

test('a start that the server refuses is told of with its log', async () => {
  const { server, model } = await filled();
  server.answer = new ApiError(400, 'not so', 'the log');

  await model.start();

  assert.ok(!model.isStarting);
  assert.deepEqual(model.failure, { message: 'not so', log: 'the log' });
});

test('nothing can be started with a kernel that has no workbench', async () => {
  const { server, model } = await filled(target => {
    target.known = [BARE];
  });

  model.set('kernel', 'bare');
  await checked(model);

  assert.equal(model.unusableKernel, BARE);
  assert.ok(!model.canStart);
  await model.start();
  assert.deepEqual(server.started, []);
});

test('a remembered kernel that was removed is forgotten', async () => {
  const { server, model } = await filled(
    target => {
      target.known = [BARE];
    },
    { kernel: 'gone' }
  );

  assert.equal(model.values.kernel, '');
  assert.ok(!('kernel' in (server.checked.at(-1) ?? {})));
});

test('a remembered kernel is kept, and told of, while the kernels cannot be read', async () => {
  const { server, model } = await filled(
    target => {
      target.known = new ApiError(504, 'the files do not answer');
    },
    { kernel: 'mine' }
  );

  assert.equal(model.values.kernel, 'mine');
  assert.equal(model.unlistedKernel, 'mine');
  assert.equal(model.failure?.message, 'the files do not answer');
  assert.equal(server.checked.at(-1)?.kernel, 'mine');
});

test('a check that cannot be made does not stand against a start', async () => {
  const { model } = await filled(server => {
    server.verdict = new ApiError(504, 'the scheduler does not answer');
  });

  assert.equal(model.failure?.message, 'the scheduler does not answer');
  assert.ok(model.canStart);
});

test('a form that does not come is told of', async () => {
  const { server, model } = await filled(target => {
    target.description = new ApiError(502, 'no form');
  });

  assert.equal(model.form, null);
  assert.equal(model.failure?.message, 'no form');
  await model.start();
  assert.deepEqual(server.started, []);
});

test('a form that did not come can be requested again', async () => {
  const { server, model } = await filled(
    target => {
      target.description = new ApiError(502, 'no form');
    },
    { ranks: '3' }
  );
  server.description = form();

  const loaded = model.reload();
  assert.deepEqual([model.isLoading, model.failure], [true, null]);
  await loaded;

  assert.equal(model.values.ranks, '3');
  assert.equal(model.failure, null);
});

test('a form that is closed listens no longer', async () => {
  const { clusters, model } = await started();
  let emitted = 0;
  model.changed.connect(() => {
    emitted += 1;
  });

  model.dispose();
  clusters.update({ starts: [start({ state: 'failed' })] });

  assert.equal(emitted, 0);
  assert.equal(model.failure, null);
});

test('a start goes to the server although the form is closed before it was checked', async () => {
  const { server, model } = await filled();
  model.set('ranks', '3');

  const asked = model.start();
  model.dispose();
  await asked;

  assert.equal(server.started[0]?.ranks, 3);
});

test('who has closed the form is told of a start that the server refuses', async () => {
  const { server, model } = await filled();
  server.answer = new ApiError(400, 'not so');

  const asked = model.start();
  model.dispose();

  await assert.rejects(asked, /not so/);
});
