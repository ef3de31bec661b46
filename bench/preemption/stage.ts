/** The real parts of benches on Slurm: a private cluster, and commands typed by an ordinary user. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { Cluster } from '../../test/cluster/cluster.ts';
import type { ClusterLease } from '../../test/cluster/shared.ts';
import { benchCluster } from '../need.ts';

export interface StageOptions {
  /** Name of the cluster and of the site. */
  name: string;
  /** Least time of an iteration: what a replica declares to be able to do. */
  step_ms?: number;
  /** More lines of the site config. */
  site_lines?: string;
}

/** A login node of a private Slurm cluster, with a site config and a model in the home of an ordinary user. */
export class Stage {
  readonly cluster: Cluster;
  readonly folder: string;
  readonly #lease: ClusterLease;
  #backfill: ChildProcess | undefined;

  static async open(options: StageOptions): Promise<Stage> {
    const stage = new Stage(await benchCluster(options.name));
    try {
      await stage.#prepare(options);
    } catch (error) {
      await stage.close();
      throw error;
    }
    return stage;
  }

  private constructor(lease: ClusterLease) {
    this.#lease = lease;
    this.cluster = lease.cluster;
    this.folder = mkdtempSync('/tmp/hpcserve-bench-');
    this.#give(this.folder);
    chmodSync(this.folder, 0o700);
  }

  /** Types a command on the login node; its last line as JSON. @throws where it fails */
  async ask<T>(...argv: string[]): Promise<T> {
    const { code, stdout, stderr } = await this.run([...argv, '--json']);
    if (code !== 0) throw new Error(`hpcserve ${argv.join(' ')} ended with ${code}:\n${stderr}${stdout}`);
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? 'null') as T;
  }

  /** As `ask`, whatever comes of it. */
  run(argv: readonly string[], env: Record<string, string> = {}): ReturnType<Cluster['runAs']> {
    return this.cluster.runAs('user', this.#argv(argv), {
      cwd: this.folder,
      env: { ...this.#env, ...env },
      timeout_ms: 180_000,
    });
  }

  /** What Slurm prints. @throws where it fails */
  async slurm(...argv: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.cluster.runAs('user', argv);
    if (code !== 0) throw new Error(`${argv.join(' ')} ended with ${code}: ${stderr}`);
    return stdout.trim();
  }

  deploy(file: string): Promise<{ url: string; key: string }> {
    return this.ask('deploy', '--yes', file, '--timeout', '90s');
  }

  startBackfill(): void {
    const [program, ...rest] = this.cluster.argvAsUser(this.#argv(['backfill', '--progress', 'plain']));
    this.#backfill = spawn(program!, rest, {
      cwd: this.folder,
      env: { ...this.cluster.env, ...this.#env },
      stdio: 'ignore',
    });
  }

  async close(): Promise<void> {
    if (this.#backfill && this.#backfill.exitCode === null) {
      this.#backfill.kill('SIGTERM');
      await once(this.#backfill, 'exit');
    }
    await this.run(['stop', '--all', '--yes']);
    await this.#lease.release();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get #env(): Record<string, string> {
    return { HOME: this.folder, HPCSERVE_SITE: join(this.folder, 'site.yaml') };
  }

  #argv(words: readonly string[]): string[] {
    return [process.execPath, join(packageRoot, 'cli/hpcserve.mjs'), ...words];
  }

  /** Writes a model.yaml with one model on the toy file; its path. */
  modelFile(name: string, more: Record<string, unknown>): string {
    const model = { name, source: './toy.gguf', cpu_threads: 1, context_tokens: 512, ...more };
    return this.write(`${name}.yaml`, JSON.stringify({ name, models: [model] }));
  }

  async #prepare({ name, step_ms, site_lines = '' }: StageOptions): Promise<void> {
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    const paced = `$1emulated: cpu\n$1emulated_step_ms: ${step_ms}`;
    const site = shipped.replace('name: test-cluster', `name: ${name}`);
    this.write(
      'site.yaml',
      (step_ms === undefined ? site : site.replaceAll(/^( +)emulated: cpu$/gm, paced)) + site_lines,
    );
    await this.ask('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
  }

  /** A file of the user; its path. */
  write(name: string, text: string, mode = 0o644): string {
    const path = join(this.folder, name);
    writeFileSync(path, text, { mode });
    this.#give(path);
    return path;
  }

  #give(path: string): void {
    chownSync(path, this.cluster.user.uid, this.cluster.user.gid);
  }
}
