/** What a bench cannot do without: a bar that nobody could look at is one that does not hold. */

import type { ClusterOptions } from '../test/cluster/cluster.ts';
import { ensureSlurmInstalled } from '../test/cluster/install.ts';
import { acquireCluster, type ClusterLease } from '../test/cluster/shared.ts';

/** Data or a peer that is not there, and how to get it: the bench ends with it, and with exit code 1. */
export class MissingNeed extends Error {
  readonly how: string;

  constructor(what: string, how: string) {
    super(what);
    this.how = how;
  }
}

/**
 * A private Slurm cluster; as root on Debian, Slurm is installed first where it is missing.
 * @throws MissingNeed where it is not there and cannot be installed
 */
export async function benchCluster(name: string, options: ClusterOptions = {}): Promise<ClusterLease> {
  const slurm = await ensureSlurmInstalled((line) => void process.stderr.write(`${line}\n`)).catch(
    (error: Error) => ({ ready: false as const, missing: error.message }),
  );
  if (!slurm.ready)
    throw new MissingNeed(
      `this bench runs on a Slurm cluster of its own: ${slurm.missing}`,
      'run it as root on Debian or Ubuntu with a package mirror, where it installs Slurm itself',
    );
  if (process.getuid?.() !== 0)
    throw new MissingNeed(
      'this bench starts the daemons of a Slurm cluster of its own, which only root can',
      'run it as root, such as in a container',
    );
  return acquireCluster(name, options);
}
