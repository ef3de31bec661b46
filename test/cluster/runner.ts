/** Runs Slurm's commands of the test cluster as its ordinary user. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  type CommandOptions,
  type CommandResult,
  type CommandRunner,
  LocalCommandRunner,
} from '../../slurm/command-runner.ts';
import type { Cluster } from './cluster.ts';
import type { ClusterUser } from './user.ts';

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

/**
 * The same on a machine that has no entry for the user, as a container without the site's users. The user database is
 * hidden from the command by a mount that nobody else sees, so it needs root.
 */
export class UnknownUserRunner implements CommandRunner {
  readonly #user: ClusterUser;
  readonly #local: LocalCommandRunner;

  readonly #users: string;

  constructor({ env, user, state }: Cluster) {
    const { USER, LOGNAME, ...environment } = env;
    this.#users = join(state.folder, 'passwd-of-a-container');
    // Slurm's configuration names the daemons' user, and no command of 20.11 reads it where that is unknown.
    writeFileSync(this.#users, 'root:x:0:0:root:/root:/bin/sh\n');
    this.#user = user;
    this.#local = new LocalCommandRunner({ environment, cwd: user.home });
  }

  run(argv: readonly string[], options: CommandOptions): Promise<CommandResult> {
    const { uid, gid } = this.#user;
    const hide = 'mount --bind "$0" /etc/passwd && exec "$@"';
    const hidden = ['unshare', '--mount', 'sh', '-c', hide, this.#users];
    const asUser = ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups', '--'];
    return this.#local.run([...hidden, ...asUser, ...argv], options);
  }
}
