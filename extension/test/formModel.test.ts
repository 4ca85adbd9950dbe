import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ApiError } from '../src/apiError';
import type { IKernel } from '../src/dialog/contract';
import { FormModel } from '../src/dialog/formModel';
import { cluster } from './support/fakes';
import { FakeClusters, FakeFormServer, start } from './support/forms';

const BARE: IKernel = {
  name: 'bare',
  display_name: 'Bare',
  version: null,
  hint: '/bare/python -m pip install it'
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

/** Start, and wait until it is followed. */
async function started(model: FormModel, server: FakeFormServer) {
  const before = server.started.length;
  const end = model.start();
  while (server.started.length === before) {
    await turn();
  }
  await turn();
  return { end };
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
  assert.equal(await model.start(), false);
  assert.deepEqual(server.started, []);

  server.verdict = { errors: {}, script: 'exec it' };
  model.set('ranks', '9');
  await checked(model);
  assert.ok(model.canStart);
});

test('a start that comes before the check waits for it', async () => {
  const { server, model } = await filled();

  server.verdict = { errors: { ranks: 'none' }, script: null };
  model.set('ranks', '0');

  assert.equal(await model.start(), false);
  assert.equal(server.checked.at(-1)?.ranks, 0);
  assert.deepEqual(server.started, []);
  assert.ok(!model.isStarting);
});

test('a start that gets ready is accepted', async () => {
  const { server, clusters, model } = await filled();

  const { end } = await started(model, server);
  clusters.tell({ starts: [start()] });
  assert.ok(model.isStarting);
  clusters.tell({ starts: [] });

  assert.equal(await end, true);
  assert.equal(model.failure, null);
});

test('a start is attended until it has come to an end, or the form is closed', async () => {
  const { server, clusters, model } = await filled();
  const { end } = await started(model, server);
  assert.deepEqual([...clusters.attended], ['s']);
  clusters.tell({ starts: [start({ state: 'failed' })] });
  await end;
  assert.deepEqual([...clusters.attended], []);

  await started(model, server);
  clusters.tell({ starts: [start()] });
  model.dispose();

  assert.deepEqual([...clusters.attended], []);
});

test('a start whose job waits in a queue is accepted', async () => {
  const { server, clusters, model } = await filled();

  const { end } = await started(model, server);
  clusters.tell({
    starts: [start({ name: 'mpi' })],
    clusters: [cluster('mpi', { jobs: ['17'], state: 'queued', created: 101 })]
  });

  assert.equal(await end, true);
});

test('an older cluster of the same name does not stand for a start', async () => {
  const { server, clusters, model } = await filled();

  const { end } = await started(model, server);
  clusters.tell({
    starts: [start({ name: 'mpi' })],
    clusters: [cluster('mpi', { jobs: ['17'], created: 99 })]
  });
  clusters.tell({ starts: [start({ name: 'mpi', state: 'failed', message: 'there is one' })] });

  assert.equal(await end, false);
  assert.deepEqual(model.failure, { message: 'there is one', log: '' });
});

test('a start that fails leaves the form as it is, with the end of the log', async () => {
  const { server, clusters, model } = await filled();
  model.set('ranks', '3');

  const { end } = await started(model, server);
  clusters.tell({ starts: [start({ state: 'failed', message: 'no', log: 'rank 1: no' })] });

  assert.equal(await end, false);
  assert.deepEqual(model.failure, { message: 'no', log: 'rank 1: no' });
  assert.equal(model.values.ranks, '3');
  assert.ok(model.canStart);
});

test('a start after one that has failed dismisses that', async () => {
  const { server, clusters, model } = await filled();
  const first = await started(model, server);
  clusters.tell({ starts: [start({ state: 'failed' })] });
  await first.end;

  server.answer = start({ id: 'second' });
  clusters.starts = [];
  const second = await started(model, server);
  clusters.tell({ starts: [start({ id: 'second' })] });
  clusters.tell({ starts: [] });

  assert.equal(await second.end, true);
  assert.deepEqual(server.dismissed, ['s']);
});

test('a start that the server refuses is told of with its log', async () => {
  const { server, model } = await filled();
  server.answer = new ApiError(400, 'not so', 'the log');

  assert.equal(await model.start(), false);
  assert.deepEqual(model.failure, { message: 'not so', log: 'the log' });
});

test('nothing can be started with a kernel that has no workbench', async () => {
  const { model } = await filled(server => {
    server.known = [BARE];
  });

  model.set('kernel', 'bare');
  await checked(model);

  assert.equal(model.badKernel, BARE);
  assert.ok(!model.canStart);
  assert.equal(await model.start(), false);
});

test('a remembered kernel that was removed is forgotten', async () => {
  const { server, model } = await filled(
    its => {
      its.known = [BARE];
    },
    { kernel: 'gone' }
  );

  assert.equal(model.values.kernel, '');
  assert.ok(!('kernel' in (server.checked.at(-1) ?? {})));
});

test('a remembered kernel is kept, and told of, while the kernels cannot be read', async () => {
  const { server, model } = await filled(
    its => {
      its.known = new ApiError(504, 'the files do not answer');
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
  const { model } = await filled(server => {
    server.its = new ApiError(502, 'no form');
  });

  assert.equal(model.form, null);
  assert.equal(model.failure?.message, 'no form');
  assert.equal(await model.start(), false);
});

test('a form that is closed listens no longer', async () => {
  const { server, clusters, model } = await filled();
  let emitted = 0;
  await started(model, server);
  model.changed.connect(() => {
    emitted += 1;
  });

  model.dispose();
  clusters.tell({ starts: [start({ state: 'failed' })] });

  assert.equal(emitted, 0);
  assert.equal(model.failure, null);
});
