import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../../test/cluster/cluster.ts';
import { type ClusterLease, testClusterName } from '../../test/cluster/shared.ts';
import { benchCluster } from '../need.ts';

export const model = 'toy';
export const max_sequences = 2;

export interface StageOptions {
  replicas: number;
  /** Least time of an iteration: what a replica declares to be able to do. */
  step_ms: number;
  /** Wall time of each job, as Slurm writes it; absent: the site's, after which the keeper replaces it. */
  time_limit?: string;
  /** Sequences that a replica computes at once; absent: 2. */
  max_sequences?: number;
}

/** The real parts of the run: a private Slurm cluster, one deployment a replica, as an ordinary user types it. */
export class Stage {
  readonly cluster: Cluster;
  readonly folder: string;
  readonly options: StageOptions;
  readonly #lease: ClusterLease;

  static async open(options: StageOptions): Promise<Stage> {
    const lease = await benchCluster(testClusterName('chaos'));
    const stage = new Stage(lease, options);
    try {
      await stage.#prepare();
    } catch (error) {
      await stage.close();
      throw error;
    }
    return stage;
  }

  private constructor(lease: ClusterLease, options: StageOptions) {
    this.#lease = lease;
    this.cluster = lease.cluster;
    this.options = options;
    this.folder = mkdtempSync('/tmp/hpcserve-chaos-');
    this.#give(this.folder);
    chmodSync(this.folder, 0o700);
  }

  /** Names of the deployments, one a replica. */
  get deployments(): string[] {
    return Array.from({ length: this.options.replicas }, (_, index) => `toy-${index}`);
  }

  /** Types a command on the login node. */
  hpcserve(...argv: string[]): Promise<CommandResult> {
    return this.cluster.runAs('user', [process.execPath, join(packageRoot, 'cli/hpcserve.mjs'), ...argv], {
      cwd: this.folder,
      env: { HOME: this.folder, HPCSERVE_SITE: this.#siteFile },
      timeout_ms: 180_000,
    });
  }

  /** As `hpcserve`; what it printed. @throws where it fails */
  async must(...argv: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.hpcserve(...argv);
    if (code !== 0) throw new Error(`hpcserve ${argv.join(' ')} ended with ${code}:\n${stderr}${stdout}`);
    return stdout;
  }

  deploymentFile(name: string): string {
    return join(this.folder, `${name}.yaml`);
  }

  /** Process ids of the node agents of a deployment that live now, by job. */
  async agents(name: string): Promise<{ job_id: string; pid: number }[]> {
    const report = JSON.parse(await this.must('status', name, '--json')) as {
      deployments: { launches: { job_id?: string; job?: { phase: string }; launch_id: string }[] }[];
    };
    const running = (report.deployments[0]?.launches ?? []).filter(({ job }) => job?.phase === 'running');
    return running.flatMap(({ job_id, launch_id }) => {
      const agent = this.cluster
        .jobProcesses()
        .find(({ command }) => command.includes('dist/agent/main.js') && command.includes(launch_id));
      return job_id === undefined || agent === undefined ? [] : [{ job_id, pid: agent.pid }];
    });
  }

  async close(): Promise<void> {
    await this.hpcserve('stop', '--all', '--yes');
    await this.#lease.release();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get #siteFile(): string {
    return join(this.folder, 'chaos-site.yaml');
  }

  async #prepare(): Promise<void> {
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    // Each emulated device has the declared speed; the cores behind them could not show how replicas add up.
    this.#write(
      this.#siteFile,
      shipped
        .replace('name: test-cluster', 'name: chaos')
        .replaceAll(/^( +)emulated: cpu$/gm, `$1emulated: cpu\n$1emulated_step_ms: ${this.options.step_ms}`),
    );
    await this.must('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
    for (const name of this.deployments)
      this.#write(
        this.deploymentFile(name),
        JSON.stringify({
          name,
          models: [
            {
              name: model,
              source: './toy.gguf',
              cpu_threads: 1,
              context_tokens: 512,
              max_sequences: this.options.max_sequences ?? max_sequences,
              batch_invariant: true,
              devices: { kind: 'gpu' },
              tier: 'stable',
            },
          ],
          slurm: { time_limit: this.options.time_limit },
        }),
      );
  }

  #write(path: string, text: string): void {
    writeFileSync(path, text);
    this.#give(path);
  }

  #give(path: string): void {
    chownSync(path, this.cluster.user.uid, this.cluster.user.gid);
  }
}
