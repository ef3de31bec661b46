/** Runs Slurm's commands of the test cluster as its ordinary user. */
import {
  type CommandOptions,
  type CommandResult,
  type CommandRunner,
  LocalCommandRunner,
} from '../../slurm/command-runner.ts';
import type { Cluster } from './cluster.ts';

/** The real local runner, behind the switch to the cluster's user. */
export class ClusterCommandRunner implements CommandRunner {
  readonly #cluster: Cluster;
  readonly #local: LocalCommandRunner;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
    this.#local = new LocalCommandRunner({ environment: cluster.env, cwd: cluster.user.home });
  }

  run(argv: readonly string[], options: CommandOptions): Promise<CommandResult> {
    return this.#local.run(this.#cluster.argvAsUser(argv), options);
  }
}
