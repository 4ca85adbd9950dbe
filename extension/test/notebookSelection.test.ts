import { Signal } from '@lumino/signaling';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { bindSelection } from '../src/notebooks/selection';
import { cluster, live } from './support/fakes';

/** The tracker of notebooks. */
class Notebooks {
  currentWidget: object | null = null;
  readonly currentChanged = new Signal<this, object | null>(this);

  show(notebook: object | null): void {
    this.currentWidget = notebook;
    this.currentChanged.emit(notebook);
  }
}

test('each notebook has the cluster that was selected when the notebook was current the last time', () => {
  const { model } = live(cluster('a'), cluster('b'));
  const [one, other, third] = [{}, {}, {}];
  const notebooks = new Notebooks();
  bindSelection(notebooks, model);

  notebooks.show(one);
  model.select('a');
  notebooks.show(other);
  assert.equal(model.selectedName, 'a', 'a notebook without a cluster keeps the selection');
  model.select('b');
  notebooks.show(one);
  assert.equal(model.selectedName, 'a');
  notebooks.show(other);
  assert.equal(model.selectedName, 'b');
  notebooks.show(third);
  assert.equal(model.selectedName, 'b');
  notebooks.show(null);
  assert.equal(model.selectedName, 'b');
});

test('the cluster of a notebook that has ended is not selected again', () => {
  const { model } = live(cluster('b'));
  const [one, other] = [{}, {}];
  const notebooks = new Notebooks();
  bindSelection(notebooks, model);

  notebooks.show(one);
  model.select('ended');
  notebooks.show(other);
  model.select('b');
  notebooks.show(one);

  assert.equal(model.selectedName, 'b');
});
