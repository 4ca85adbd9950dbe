import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';

/** Return why a notebook does not take Python code; empty: the notebook does. */
export function refusalReason(
  { title, context, model, sessionContext: { session, specsManager } }: NotebookPanel,
  trans: TranslationBundle
): string {
  if (context.contentsModel?.writable === false) {
    return trans.__(
      '%1 is read-only: choose another notebook, or save this one under another name.',
      title.label
    );
  }
  // without a kernel, the metadata of the file
  const kernel = session?.kernel?.name ?? model?.defaultKernelName ?? '';
  const language =
    specsManager.specs?.kernelspecs[kernel]?.language ?? model?.defaultKernelLanguage ?? '';
  return language === '' || /python/i.test(language)
    ? ''
    : trans.__(
        'The kernel of %1 runs %2, and the code is Python: choose another notebook or kernel.',
        title.label,
        language
      );
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
