import assert from 'node:assert/strict';
import { test } from 'node:test';

import { filterRanks, sortFileNames } from '../src/logs/logsModel';

const NAMES = ['rank-10', 'rank-2', 'world-1', 'job', 'other', 'world-0', 'head', 'rank-12'];
const { cluster, ranks } = sortFileNames(NAMES.map(name => ({ name, size: 0 })));

test('files stand in the order of what they are of, and ranks in that of their numbers', () => {
  assert.deepEqual(cluster, ['head', 'job', 'world-0', 'world-1', 'other']);
  assert.deepEqual(ranks, ['rank-2', 'rank-10', 'rank-12']);
});

for (const [filter, expected] of [
  ['', ranks],
  ['  ', ranks],
  ['1', ['rank-10', 'rank-12']],
  ['2', ['rank-2']],
  ['0-10', ['rank-2', 'rank-10']],
  ['12, 2', ['rank-2', 'rank-12']],
  ['Rank-10', ['rank-10']],
  ['nothing', []]
] as const) {
  test(`the filter "${filter}" finds ${expected.join(', ') || 'nothing'}`, () => {
    assert.deepEqual(filterRanks(ranks, filter), expected);
  });
}
