import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IKernel } from '../contract';

function kernelName({ model, sessionContext: { session } }: NotebookPanel): string {
  // without a kernel, the metadata of the file
  return session?.kernel?.name ?? model?.defaultKernelName ?? '';
}

/** Return why a notebook does not take Python code; empty: the notebook does. */
export function refusalReason(panel: NotebookPanel, trans: TranslationBundle): string {
  const {
    title,
    context,
    model,
    sessionContext: { specsManager }
  } = panel;
  if (context.contentsModel?.writable === false) {
    return trans.__(
      '%1 is read-only: choose another notebook, or save this one under another name.',
      title.label
    );
  }
  const language =
    specsManager.specs?.kernelspecs[kernelName(panel)]?.language ??
    model?.defaultKernelLanguage ??
    '';
  return language === '' || /python/i.test(language)
    ? ''
    : trans.__(
        'The kernel of %1 runs %2, and the code is Python: choose another notebook or kernel.',
        title.label,
        language
      );
}

/** Return why the code fails in the kernel of a notebook; empty: the kernel is not known to lack the workbench. */
export function failureReason(
  panel: NotebookPanel,
  kernels: readonly IKernel[],
  trans: TranslationBundle
): string {
  const kernel = kernels.find(({ name }) => name === kernelName(panel));
  // of some kernels the server does not know the environment
  return kernel?.installable
    ? trans.__(
        'The code fails in %1: its kernel %2 has no workbench. Install it: %3',
        panel.title.label,
        kernel.display_name,
        kernel.hint ?? ''
      )
    : '';
}

/** Return the Python code that makes a notebook a client of a cluster. */
export function clientCode(cluster: string): string {
  return [
    'from workbench import MPICluster',
    '',
    `cluster = MPICluster.attach(${JSON.stringify(cluster)})`,
    'client = cluster.get_client()',
    'client'
  ].join('\n');
}
