import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  groupFields,
  initialValues,
  parseScript,
  startOptions,
  visibleFields
} from '../src/cluster-form/values';
import type { IField } from '../src/contract';
import { form } from './support/forms';

test('a form is filled with the default scheduler and a rank for each core at first', () => {
  const values = initialValues(form(), undefined);

  assert.equal(values.scheduler, 'slurm');
  assert.equal(values.ranks, '8');
});

test('what was remembered is filled in, but for the name and what is not there any more', () => {
  const values = initialValues(form(), {
    scheduler: 'pbs',
    ranks: '4',
    name: 'mine',
    mpi: 'gone',
    protocol: 'tcp',
    kernel: 'python3',
    unknown: '1'
  });

  assert.equal(values.scheduler, 'slurm');
  assert.equal(values.ranks, '4');
  assert.equal(values.name, '');
  assert.equal(values.mpi, '');
  assert.equal(values.protocol, 'tcp');
  assert.equal(values.kernel, 'python3');
  assert.ok(!('unknown' in values));
});

for (const nonsense of [null, 'text', 3, ['a']]) {
  test(`a memory of ${JSON.stringify(nonsense)} is none`, () => {
    assert.deepEqual(initialValues(form(), nonsense), initialValues(form(), undefined));
  });
}

test('what only batch schedulers can be asked for is neither seen nor sent otherwise', () => {
  const values = {
    ...initialValues(form(), {}),
    walltime: '2h',
    extra: '-J x',
    scheduler: 'local'
  };

  const { first, more } = visibleFields(form(), values);

  const names = [...first, ...more].map(field => field.name);
  assert.ok(!names.includes('walltime') && !names.includes('extra'));
  assert.deepEqual(startOptions(form(), values), { scheduler: 'local', ranks: 8 });
});

test('what nearly everybody asks for comes first, in its order', () => {
  const { first, more } = visibleFields(form(), initialValues(form(), {}));

  assert.deepEqual(
    first.map(field => field.name),
    ['scheduler', 'name', 'ranks', 'walltime']
  );
  assert.deepEqual(
    more.map(field => field.name),
    ['extra', 'mpi', 'protocol']
  );
});

test('fields are in the groups of the help, and one group is the environment', () => {
  const { first, more } = visibleFields(form(), initialValues(form(), {}));
  const named = (fields: IField[]) =>
    groupFields(fields).map(group => [
      group.name,
      group.fields.map(field => field.name),
      group.isEnvironment
    ]);

  assert.deepEqual(named(first), [
    ['scheduler', ['scheduler', 'walltime'], false],
    ['what to start', ['name', 'ranks'], false],
    ['environment of the ranks', [], true]
  ]);
  assert.deepEqual(named(more), [
    ['scheduler', ['extra'], false],
    ['environment of the ranks', ['mpi'], true],
    ['network', ['protocol'], false]
  ]);
});

test('what is filled in becomes options of their kinds', () => {
  const values = {
    ...initialValues(form(), {}),
    ranks: ' 16 ',
    walltime: '2h',
    extra: '--qos=high\n\n  --mail-type=END ',
    kernel: 'python3',
    directory: 'work'
  };

  assert.deepEqual(startOptions(form(), values), {
    scheduler: 'slurm',
    ranks: 16,
    walltime: '2h',
    extra: ['--qos=high', '--mail-type=END'],
    kernel: 'python3',
    directory: 'work'
  });
});

for (const text of ['four', '1e3', '2.5', '0x10', '9'.repeat(20)]) {
  test(`${text} ranks are sent as they are, for the server to say what is wrong`, () => {
    const values = { ...initialValues(form(), {}), ranks: text };

    assert.equal(startOptions(form(), values).ranks, text);
  });
}

test('the answer of the scheduler is taken from the end of the script', () => {
  const output =
    '#!/bin/sh\n# slurm reports: not this\nexec it\n# slurm reports: would start at 12:00\nif lucky\n';

  assert.deepEqual(parseScript(output), {
    script: '#!/bin/sh\n# slurm reports: not this\nexec it\n',
    scheduler: 'slurm',
    verdict: 'would start at 12:00\nif lucky'
  });
});

test('a script without an answer is all script', () => {
  assert.deepEqual(parseScript('exec it\n'), { script: 'exec it\n', scheduler: '', verdict: '' });
});
