import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFailed } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster, ClusterOptions } from './cluster.ts';
import { type ClusterShape, sharedTemporaryFolder } from './layout.ts';
import { acquireCluster, type ClusterLease, testClusterName } from './shared.ts';

export interface UserHomeOptions {
  /** What a cluster beside that of this test worker is for; see `testClusterName`. */
  cluster?: string;
  /** The kind of site that this cluster is. */
  shape?: ClusterShape;
  /** With slurmdbd, as `ClusterOptions` has it. */
  accounting?: boolean;
  /** Makes a site of the shipped `test-cluster`, in `site.yaml`; absent: the shipped one. */
  site?: (shipped: string, cluster: Cluster) => string;
  /** A command that takes longer is ended; absent: 120 s. */
  command_timeout_ms?: number;
}

/** What is typed for `hpcserve`. */
export const hpcserveProgram: readonly string[] = [process.execPath, join(packageRoot, 'cli/hpcserve.mjs')];

/**
 * A user of a test cluster: a home on a filesystem that all nodes see, a small model in it, and commands typed on the
 * login node.
 */
export class UserHome {
  readonly cluster: Cluster;
  readonly folder: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly #lease: ClusterLease;
  readonly #command_timeout_ms: number;

  private constructor(lease: ClusterLease, { site, shape, command_timeout_ms = 120_000 }: UserHomeOptions) {
    this.#lease = lease;
    this.#command_timeout_ms = command_timeout_ms;
    this.cluster = lease.cluster;
    this.folder = mkdtempSync(join(sharedTemporaryFolder(shape), 'hpcserve-e2e-'));
    this.own(this.folder);
    chmodSync(this.folder, 0o700);
    const shipped = join(packageRoot, 'site-configs/test-cluster.yaml');
    this.environment = {
      HOME: this.folder,
      HPCSERVE_SITE: site
        ? this.write('site.yaml', site(readFileSync(shipped, 'utf8'), lease.cluster))
        : 'test-cluster',
    };
  }

  /** With the model `toy.gguf` in it. */
  static async open(options: UserHomeOptions = {}): Promise<UserHome> {
    const { accounting = false, shape } = options;
    const cluster = options.cluster ?? shape ?? (accounting ? 'accounting' : undefined);
    const wanted: ClusterOptions = { accounting };
    if (shape !== undefined) wanted.shape = shape;
    const lease = await acquireCluster(testClusterName(cluster), wanted);
    const home = new UserHome(lease, options);
    const made = await home.hpcserve('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
    expect(made.code, made.stderr).toBe(0);
    return home;
  }

  /** Stops what was deployed, and gives the cluster back. */
  async close(): Promise<void> {
    await this.hpcserve('stop', '--all', '--yes');
    await this.#lease.release();
    // Workers whose agent was killed may write until they have noticed.
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
  }

  /** Types a command on the login node. */
  hpcserve(...argv: string[]): Promise<CommandResult> {
    return this.run([...hpcserveProgram, ...argv]);
  }

  /** The same for any program, with further variables. */
  run(argv: readonly string[], environment: Readonly<Record<string, string>> = {}): Promise<CommandResult> {
    return this.cluster.runAs('user', [...argv], {
      cwd: this.folder,
      env: { ...this.environment, ...environment },
      timeout_ms: this.#command_timeout_ms,
    });
  }

  /** In a `beforeEach`: what a person would look at is said with a test that fails, and again at the end of a run. */
  explainFailure(): void {
    onTestFailed(async ({ task }) => {
      task.meta.seen = await this.explain();
      console.error(task.meta.seen);
    });
  }

  /** The queue, the nodes, the deployments, and what keeper, gateway and agents said last. */
  async explain(): Promise<string> {
    const last = (lines: number, files: string): string[] => [
      'sh',
      '-c',
      `tail -q -n ${lines} $(ls -tr ${files} | tail -n 3) | cut -c 1-280`,
    ];
    const looks = [
      ['squeue', '--all', '--format=%i %P %j %T %r %N %S'],
      ['sinfo', '--format=%N %T %E'],
      [...hpcserveProgram, 'status'],
      last(16, '$HOME/.hpcserve/*/keeper/keeper.log'),
      last(10, '$HOME/.hpcserve/*/gateway/*.log'),
      last(8, '$HOME/.hpcserve/*/deployments/*/launches/*/*.agent.log'),
      last(4, '$HOME/.hpcserve/*/deployments/*/launches/*/*-0*.log'),
    ];
    const seen: string[] = [];
    for (const argv of looks) {
      const { stdout, stderr } = await this.run(argv);
      seen.push(`$ ${argv.slice(-2).join(' ')}`, stdout, stderr);
    }
    return seen.join('\n');
  }

  /**
   * A file of the user.
   * @param content what is no text is written as JSON, which is YAML
   */
  write(name: string, content: unknown, mode = 0o600): string {
    const path = join(this.folder, name);
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content), { mode });
    this.own(path);
    return path;
  }

  own(path: string): void {
    chownSync(path, this.cluster.user.uid, this.cluster.user.gid);
  }
}
