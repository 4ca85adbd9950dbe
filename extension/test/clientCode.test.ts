import type { NotebookPanel } from '@jupyterlab/notebook';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { refusalReason } from '../src/notebooks/clientCode';
import { trans } from './support/trans';

interface IFacts {
  writable?: boolean;
  /** The kernel that runs. */
  kernel?: string;
  /** What the file says. */
  defaultKernelName?: string;
  defaultKernelLanguage?: string;
}

function refused({ writable = true, kernel, ...file }: IFacts): string {
  const kernelspecs = { python3: { language: 'python' }, ir: { language: 'R' } };
  const panel = {
    title: { label: 'one.ipynb' },
    context: { contentsModel: { writable } },
    model: { defaultKernelName: '', defaultKernelLanguage: '', ...file },
    sessionContext: {
      session: kernel === undefined ? null : { kernel: { name: kernel } },
      specsManager: { specs: { kernelspecs } }
    }
  };
  return refusalReason(panel as unknown as NotebookPanel, trans);
}

test('a notebook whose kernel runs Python takes the code', () => {
  assert.equal(refused({ kernel: 'python3' }), '');
});

test('a notebook whose kernel runs another language is refused, and the language is named', () => {
  assert.match(refused({ kernel: 'ir' }), /one\.ipynb runs R/);
  assert.match(refused({ kernel: 'ir', defaultKernelLanguage: 'python' }), /runs R/);
});

test('without a kernel the file tells the language', () => {
  assert.match(refused({ defaultKernelName: 'ir' }), /runs R/);
  assert.match(refused({ defaultKernelName: 'gone', defaultKernelLanguage: 'julia' }), /julia/);
  assert.equal(refused({ defaultKernelLanguage: 'python' }), '');
});

test('a new notebook, of which no language is known, takes the code', () => {
  assert.equal(refused({}), '');
});

test('a read-only notebook is refused', () => {
  assert.match(refused({ kernel: 'python3', writable: false }), /one\.ipynb is read-only/);
});
