import type { TranslationBundle } from '@jupyterlab/translation';

import type { IField } from '../contract';

/** The label and the help text of an option. */
export type OptionTexts = Pick<IField, 'label' | 'help'>;

/**
 * Return the texts of an option in the language of the page; those of the server, if the option is not known here.
 *
 * The English texts of the server are repeated, since JupyterLab's translators find texts in the sources of an
 * extension. A test compares them with the server's.
 */
export function optionTexts(
  { name, label, help }: Pick<IField, 'name'> & OptionTexts,
  trans: TranslationBundle
): OptionTexts {
  const texts: Partial<Record<string, OptionTexts>> = {
    ranks: {
      label: trans.__('Ranks'),
      help: trans.__('number of MPI ranks; default: one per core')
    },
    name: {
      label: trans.__('Name'),
      help: trans.__('name of the cluster; default: mpi, mpi-2, ...')
    },
    scheduler: {
      label: trans.__('Scheduler'),
      help: trans.__('what starts the job; default: auto')
    },
    nodes: {
      label: trans.__('Nodes'),
      help: trans.__('nodes of the job')
    },
    ranks_per_node: {
      label: trans.__('Ranks per node'),
      help: trans.__('ranks per node, at most')
    },
    walltime: {
      label: trans.__('Walltime'),
      help: trans.__('time until the scheduler ends the job, for example 02:00:00 or 2h')
    },
    queue: {
      label: trans.__('Queue'),
      help: trans.__('queue or partition')
    },
    account: {
      label: trans.__('Account'),
      help: trans.__('account or project to charge')
    },
    constraint: {
      label: trans.__('Constraint'),
      help: trans.__('required features of the nodes')
    },
    reservation: {
      label: trans.__('Reservation'),
      help: trans.__('reservation for the job')
    },
    gpus_per_rank: {
      label: trans.__('GPUs per rank'),
      help: trans.__(
        'GPUs per rank, which no other rank of its node uses; default: all ranks see all GPUs'
      )
    },
    extra: {
      label: trans.__('Extra'),
      help: trans.__('an additional directive, written as after #SBATCH or #PBS; may be repeated')
    },
    preset: {
      label: trans.__('Preset'),
      help: trans.__("section of jobqueue.yaml with the site's settings")
    },
    interface: {
      label: trans.__('Interface'),
      help: trans.__('network interface of head and ranks')
    },
    fault_tolerant: {
      label: trans.__('Fault tolerant'),
      help: trans.__('let the ranks of several nodes continue when one dies, over slower networks')
    },
    preload: {
      label: trans.__('Preload'),
      help: trans.__('module that ranks import before they are ready; may be repeated')
    },
    no_template: {
      label: trans.__('No template'),
      help: trans.__(
        'let each rank import its modules, without a fork from a process with the modules'
      )
    },
    threads: {
      label: trans.__('Threads'),
      help: trans.__('threads per rank; default: 1')
    },
    memory: {
      label: trans.__('Memory'),
      help: trans.__(
        'memory limit of each rank, for example 2GB; default: node memory divided by ranks'
      )
    },
    mpi: {
      label: trans.__('MPI'),
      help: trans.__('the MPI that mpi4py must use; default: any')
    },
    protocol: {
      label: trans.__('Protocol'),
      help: trans.__('protocol between ranks: mpi or tcp; default: mpi')
    },
    idle_timeout: {
      label: trans.__('Idle timeout'),
      help: trans.__(
        "time without clients and tasks after which the cluster ends, for example '2h'"
      )
    },
    timeout: {
      label: trans.__('Timeout'),
      help: trans.__('seconds until all ranks must be ready')
    },
    ssh_tunnel: {
      label: trans.__('SSH tunnel'),
      help: trans.__('host, in the syntax of ssh, through which the head is reached')
    }
  };
  return texts[name] ?? { label, help };
}
