/** A private Slurm cluster with one stable replica, replicas on idle nodes, and the ordinary jobs that take those nodes. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../spec/package-root.ts';
import type { Cluster } from '../../test/cluster/cluster.ts';
import { acquireCluster, type ClusterLease } from '../../test/cluster/shared.ts';

export const model = 'toy';
export const max_sequences = 4;

export class Stage {
  readonly cluster: Cluster;
  readonly #lease: ClusterLease;
  readonly #folder: string;
  #backfill: ChildProcess | undefined;

  /** @param step_ms least time of an iteration: what a replica declares to be able to do */
  static async open(step_ms: number, replicas: number): Promise<Stage> {
    const stage = new Stage(await acquireCluster('preemption'));
    try {
      await stage.#prepare(step_ms, replicas);
    } catch (error) {
      await stage.close();
      throw error;
    }
    return stage;
  }

  private constructor(lease: ClusterLease) {
    this.#lease = lease;
    this.cluster = lease.cluster;
    this.#folder = mkdtempSync('/tmp/hpcserve-preempt-');
    this.#give(this.#folder);
    chmodSync(this.#folder, 0o700);
  }

  /** Types a command on the login node; its last line as JSON. @throws where it fails */
  async ask<T>(...argv: string[]): Promise<T> {
    const { code, stdout, stderr } = await this.cluster.runAs('user', this.#argv([...argv, '--json']), {
      cwd: this.#folder,
      env: this.#env,
      timeout_ms: 180_000,
    });
    if (code !== 0) throw new Error(`hpcserve ${argv.join(' ')} ended with ${code}:\n${stderr}${stdout}`);
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? 'null') as T;
  }

  /** What Slurm prints. @throws where it fails */
  async slurm(...argv: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.cluster.runAs('user', argv);
    if (code !== 0) throw new Error(`${argv.join(' ')} ended with ${code}: ${stderr}`);
    return stdout.trim();
  }

  deploy(): Promise<{ url: string; key: string }> {
    return this.ask('deploy', join(this.#folder, 'toy.yaml'), '--timeout', '90s');
  }

  startBackfill(): void {
    const [program, ...rest] = this.cluster.argvAsUser(this.#argv(['backfill', '--progress', 'plain']));
    this.#backfill = spawn(program!, rest, {
      cwd: this.#folder,
      env: { ...this.cluster.env, ...this.#env },
      stdio: 'ignore',
    });
  }

  async close(): Promise<void> {
    if (this.#backfill && this.#backfill.exitCode === null) {
      this.#backfill.kill('SIGTERM');
      await once(this.#backfill, 'exit');
    }
    await this.cluster.runAs('user', this.#argv(['stop', '--all', '--yes']), {
      cwd: this.#folder,
      env: this.#env,
      timeout_ms: 180_000,
    });
    await this.#lease.release();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  get #env(): Record<string, string> {
    return { HOME: this.#folder, HPCSERVE_SITE: join(this.#folder, 'site.yaml') };
  }

  #argv(words: readonly string[]): string[] {
    return [process.execPath, join(packageRoot, 'dist/cli/main.js'), ...words];
  }

  async #prepare(step_ms: number, replicas: number): Promise<void> {
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    this.#write(
      'site.yaml',
      `${shipped
        .replace('name: test-cluster', 'name: preemption')
        .replaceAll(
          /^( +)emulated: cpu$/gm,
          `$1emulated: cpu\n$1emulated_step_ms: ${step_ms}`,
        )}scavenging:\n  interval_s: 5\n  waiting_max: 1\n`,
    );
    await this.ask('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
    this.#write(
      'toy.yaml',
      JSON.stringify({
        name: model,
        models: [
          {
            name: model,
            source: './toy.gguf',
            cpu_threads: 1,
            context_tokens: 512,
            max_sequences,
            batch_invariant: true,
            tier: 'stable',
            devices: { kind: 'gpu', node_kinds: ['a100', 'scavenge-gh200'] },
            scavenger: { replicas },
          },
        ],
      }),
    );
  }

  #write(name: string, text: string): void {
    const path = join(this.#folder, name);
    writeFileSync(path, text);
    this.#give(path);
  }

  #give(path: string): void {
    chownSync(path, this.cluster.user.uid, this.cluster.user.gid);
  }
}
