import assert from 'node:assert/strict';
import { test } from 'node:test';

import { viewTitle, viewUrl, withoutTime } from '../src/dashboards/view';

test('the address of a view has the theme that is asked for', () => {
  assert.equal(viewUrl('/mpi/', 'page=cores', 'dark'), '/mpi/?page=cores&theme=dark');
  assert.equal(viewUrl('/mpi/', '?minutes=5&theme=dark', 'light'), '/mpi/?minutes=5&theme=light');
});

test('the title is that of the page, and of the first page where none is named', () => {
  assert.deepEqual(['?page=cores&minutes=5', '?theme=dark', ''].map(viewTitle), [
    'Cores',
    'Overview',
    'Overview'
  ]);
});

test('without its moment a view is the same in all else', () => {
  assert.equal(withoutTime('?page=cores&until=12.5&minutes=5'), 'page=cores&minutes=5');
});
