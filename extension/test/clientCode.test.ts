import type { NotebookPanel } from '@jupyterlab/notebook';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { IKernel } from '../src/contract';
import { failureReason, refusalReason } from '../src/notebooks/clientCode';
import { trans } from './support/trans';

interface IFacts {
  writable?: boolean;
  /** The kernel that runs. */
  kernel?: string;
  /** What the file says. */
  defaultKernelName?: string;
  defaultKernelLanguage?: string;
}

const kernel = (facts: Partial<IKernel>): IKernel => ({
  name: '',
  display_name: '',
  version: null,
  hint: null,
  installable: false,
  ...facts
});

function notebook({ writable = true, kernel, ...file }: IFacts): NotebookPanel {
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
  return panel as unknown as NotebookPanel;
}

function refused(facts: IFacts): string {
  return refusalReason(notebook(facts), trans);
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

test('a kernel without the workbench is named with the command that installs it', () => {
  const kernels = [
    kernel({ name: 'python3', version: '0.1.0' }),
    kernel({ name: 'conda', hint: 'no answer' }),
    kernel({ name: 'bare', display_name: 'Bare', hint: 'pip install it', installable: true })
  ];
  const fails = (facts: IFacts) => failureReason(notebook(facts), kernels, trans);

  assert.match(fails({ kernel: 'bare' }), /one\.ipynb: its kernel Bare .*: pip install it$/);
  assert.match(fails({ defaultKernelName: 'bare' }), /Bare/);
  assert.equal(fails({ kernel: 'python3' }), '');
  assert.equal(fails({ kernel: 'conda' }), '', 'its environment is not known');
  assert.equal(fails({ kernel: 'of another server' }), '');
});
