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
