import assert from 'node:assert/strict';
import { test } from 'node:test';

import { clientCode } from '../src/code';
import { bytes, duration, moodOf, stateOf } from '../src/words';
import { cluster } from './support/fakes';
import { trans } from './support/words';

test('a time is told in two units at most', () => {
  const told = [-3, 0, 59.9, 60, 3599, 3600, 3 * 3600 + 5 * 60, 26 * 3600].map(its =>
    duration(its, trans)
  );

  assert.deepEqual(told, [
    '0 s',
    '0 s',
    '59 s',
    '1 min',
    '59 min',
    '1 h 00 min',
    '3 h 05 min',
    '1 d 2 h'
  ]);
});

test('bytes are told in the unit that suits them', () => {
  assert.deepEqual([0, 999, 1500, 2_345_678, 64e9, 5e16].map(bytes), [
    '0 B',
    '999 B',
    '1.5 kB',
    '2.3 MB',
    '64 GB',
    '50000 TB'
  ]);
});

test('what this server does to a cluster is told before its state', () => {
  assert.equal(stateOf(cluster('a'), trans), 'ready');
  assert.equal(stateOf(cluster('a', { busy: 'stopping' }), trans), 'stopping');
  assert.equal(moodOf(cluster('a', { busy: 'stopping' })), 'ending');
});

test('a state that nobody has heard of is told as it is', () => {
  assert.equal(stateOf(cluster('a', { state: 'dreaming' }), trans), 'dreaming');
  assert.equal(moodOf(cluster('a', { state: 'dreaming' })), 'waiting');
});

test('the code of a client names its cluster', () => {
  assert.match(clientCode('my-cluster'), /^cluster = MPICluster.attach\("my-cluster"\)$/m);
});
