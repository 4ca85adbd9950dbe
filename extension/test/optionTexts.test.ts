import type { TranslationBundle } from '@jupyterlab/translation';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { optionTexts } from '../src/cluster-form/optionTexts';

/** A language that puts the English words into quotation marks. */
const trans = { __: (text: string) => `«${text}»` } as TranslationBundle;

test('label and help of an option are in the language of the page', () => {
  const field = { name: 'queue', label: 'Queue', help: 'queue or partition' };

  assert.deepEqual(optionTexts(field, trans), {
    label: '«Queue»',
    help: '«queue or partition»'
  });
});

test('an option that only the server knows has the texts of the server', () => {
  const field = { name: 'colour', label: 'Colour', help: 'colour of the ranks' };

  assert.deepEqual(optionTexts(field, trans), { label: 'Colour', help: 'colour of the ranks' });
});
