import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  formatBytes,
  formatDuration,
  formatState,
  stateCategory,
  translate,
  unavailableReason
} from '../src/format';
import { clientCode } from '../src/notebooks/clientCode';
import { cluster } from './support/fakes';
import { trans } from './support/trans';

test('a text of the server is in the language of the page', () => {
  const upper = { ...trans, __: (text: string) => text.toUpperCase() || 'header' };

  assert.deepEqual(
    ['queue or partition', ''].map(text => translate(text, upper)),
    ['QUEUE OR PARTITION', '']
  );
});

test('a time is told in two units at most', () => {
  const texts = [-3, 0, 59.9, 60, 3599, 3600, 3 * 3600 + 5 * 60, 26 * 3600].map(seconds =>
    formatDuration(seconds, trans)
  );

  assert.deepEqual(texts, [
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

test('bytes are told as dashboards do', () => {
  const sizes = [0, 1536, 512 * 2 ** 30, 1023.99 * 1024, 64e9, 3 * 2 ** 60];

  const texts = sizes.map(formatBytes);

  assert.deepEqual(texts, ['0 B', '1.5 KiB', '512 GiB', '1 MiB', '59.6 GiB', '3072 PiB']);
});

test('what hinders from asking the server is told, a broken connection is no hindrance', () => {
  const reasons = (['live', 'connecting', 'reconnecting', 'missing', 'refused'] as const).map(
    state => unavailableReason({ connectionState: state, connectionError: 'no read' }, trans)
  );

  assert.deepEqual(reasons.slice(0, 3), ['', '', '']);
  assert.match(reasons[3] ?? '', /does not have the server extension/);
  assert.match(reasons[4] ?? '', /does not let you see clusters: no read/);
});

test('what this server does to a cluster is told before its state', () => {
  assert.equal(formatState(cluster('a'), trans), 'ready');
  assert.equal(formatState(cluster('a', { busy: 'stopping' }), trans), 'stopping');
  assert.equal(stateCategory(cluster('a', { busy: 'stopping' })), 'ending');
});

test('a state that nobody has heard of is told as it is', () => {
  assert.equal(formatState(cluster('a', { state: 'dreaming' }), trans), 'dreaming');
  assert.equal(stateCategory(cluster('a', { state: 'dreaming' })), 'waiting');
});

test('the code of a client names its cluster', () => {
  assert.match(clientCode('my-cluster'), /^cluster = MPICluster.attach\("my-cluster"\)$/m);
});
