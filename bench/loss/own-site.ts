/**
 * Our side: two deployments of a replica each under one model name, as a user types them, on a Slurm cluster whose
 * nodes are hosts of their own.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parse } from 'yaml';
import { packageRoot } from '../../host/package-root.ts';
import { waitUntil } from '../../host/wait-until.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { sharedTemporaryFolder } from '../../test/cluster/layout.ts';
import { type ClusterLease, testClusterName } from '../../test/cluster/shared.ts';
import { vllm_ready_ms } from '../../test/engines/vllm.ts';
import { benchCluster } from '../need.ts';
import { context_tokens, engineEnvironment } from './bare-engines.ts';
import { computingProcess, killEngine } from './engine-loss.ts';
import { type Endpoint, LiveStream } from './live-stream.ts';
import type { Loss } from './outcome.ts';
import type { Engines } from './trial.ts';

const shape = 'separate-hosts';
const model = 'tiny';
/** Deployments, and the node of each: where one is cut off, the other is not. */
const nodes = { kept: 'c1', lost: 'c2' } as const;
const deployments = ['kept', 'lost'] as const;

/** A replica that serves. */
interface Replica {
  session: string;
  node: string;
  job_id: string;
  /** Of its engine. */
  pid: number;
}

/** Its gateway and both replicas, from `open` to disposal. */
export class OwnSite implements Engines, AsyncDisposable {
  readonly #lease: ClusterLease;
  readonly #folder: string;
  #endpoint: Endpoint | undefined;
  #lost: Replica | undefined;
  #stopped: number | undefined;

  private constructor(lease: ClusterLease) {
    this.#lease = lease;
    this.#folder = mkdtempSync(join(sharedTemporaryFolder(shape), 'hpcserve-loss-'));
    this.#give(this.#folder);
    chmodSync(this.#folder, 0o700);
  }

  /** @param model_folder is copied; @param python has vLLM, and every user may run it */
  static async open(model_folder: string, python: string, log: (line: string) => void): Promise<OwnSite> {
    const site = new OwnSite(await benchCluster(testClusterName('loss'), { shape }));
    try {
      await site.#deploy(model_folder, python, log);
      return site;
    } catch (error) {
      await site[Symbol.asyncDispose]();
      throw error;
    }
  }

  get endpoint(): Endpoint {
    return this.#endpoint!;
  }

  async onLost(streams: readonly LiveStream[]): Promise<number> {
    this.#lost = this.#replica('lost');
    const { session } = this.#lost!;
    return streams.filter((each) => each.session === session).length;
  }

  async lose(loss: Loss): Promise<void> {
    const { pid, node, job_id } = this.#lost!;
    if (loss === 'SIGSTOP') {
      this.#stopped = await computingProcess(pid);
      process.kill(this.#stopped, 'SIGSTOP');
    } else if (loss === 'network cut') this.#lease.cluster.hosts!.cut(node);
    else if (loss === 'SIGKILL') await killEngine(pid);
    else if (loss === 'scancel') await this.#lease.cluster.runAs('user', ['scancel', job_id]);
  }

  async restore(loss: Loss): Promise<void> {
    const { session, node } = this.#lost!;
    if (loss === 'SIGSTOP') process.kill(this.#stopped!, 'SIGCONT');
    if (loss === 'network cut') this.#lease.cluster.hosts!.mend(node);
    const isNew = loss === 'SIGKILL' || loss === 'scancel';
    await this.#untilBothServe(isNew ? session : undefined);
  }

  /** @param gone a session that is to be replaced by another first */
  async #untilBothServe(gone?: string): Promise<void> {
    const both = async (): Promise<true | undefined> => {
      const replicas = deployments.map((name) => this.#replica(name));
      if (replicas.some((replica) => replica === undefined || replica.session === gone)) return undefined;
      const { stdout } = await this.#hpcserve('status', '--json');
      const { deployments: seen } = JSON.parse(stdout) as { deployments: { replicas_serving: number }[] };
      if (!seen.every(({ replicas_serving }) => replicas_serving === 1)) return undefined;
      return (await this.#bothAnswer()) || undefined;
    };
    if (!(await waitUntil(both, { timeout_ms: vllm_ready_ms, interval_ms: 1000 })))
      throw new Error(`two replicas do not serve again:\n${(await this.#hpcserve('status')).stdout}`);
  }

  /** Whether the gateway gives requests to both: it may reach one later than that one serves. */
  async #bothAnswer(): Promise<boolean> {
    const asked = ['a', 'b', 'c', 'd'].map((prompt) => new LiveStream(this.endpoint, prompt, 16));
    const answers = await Promise.all(asked.map(({ answer }) => answer));
    const isWhole = answers.every(({ error }) => error === undefined);
    return isWhole && new Set(asked.map(({ session }) => session)).size === deployments.length;
  }

  /** Of a deployment, the one that its agent says serves now; the latest of its launches first. */
  #replica(deployment: string): Replica | undefined {
    const launches = join(this.#folder, '.hpcserve/test-cluster/deployments', deployment, 'launches');
    const states = readdirSync(launches, { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.state.json'))
      .map((name) => JSON.parse(readFileSync(join(launches, name), 'utf8')) as AgentState)
      .sort((a, b) => b.updated_at_ms - a.updated_at_ms);
    for (const { node, job_id, sessions } of states) {
      const serving = sessions.find(({ pid, models }) => pid !== undefined && models[0]?.state === 'serving');
      if (serving && job_id !== undefined)
        return { session: serving.session_id, node, job_id, pid: serving.pid! };
    }
    return undefined;
  }

  async #deploy(model_folder: string, python: string, log: (line: string) => void): Promise<void> {
    execFileSync('cp', ['-r', model_folder, join(this.#folder, model)]);
    const { uid, gid } = this.#lease.cluster.user;
    execFileSync('chown', ['-R', `${uid}:${gid}`, join(this.#folder, model)]);
    this.#write('site.yaml', this.#siteConfig(python));
    for (const name of deployments) {
      const served = {
        name: model,
        source: `./${model}`,
        engine: 'vllm',
        precision: 'f32',
        context_tokens,
        max_sequences: 8,
        cpu_threads: 1,
        devices: { kind: 'cpu' },
        engine_args: ['--enforce-eager'],
        environment: engineEnvironment,
      };
      this.#write(`${name}.yaml`, { name, models: [served], slurm: { nodelist: nodes[name] } });
    }
    const deploy = (name: string) =>
      this.#hpcserve('deploy', '--yes', `${name}.yaml`, '--json', '--timeout', `${vllm_ready_ms / 1000}s`);
    log('hpcserve: deploying two replicas on two nodes');
    await this.#hpcserve('deploy', '--yes', `${deployments[0]}.yaml`, '--detach');
    for (const name of deployments.toReversed()) {
      const { code, stdout, stderr } = await deploy(name);
      if (code !== 0) throw new Error(`deploy ended with ${code}:\n${stderr}${stdout}`);
      const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
      this.#endpoint = { url, key, model };
    }
    await this.#untilBothServe();
  }

  /** CPU nodes as they are, one device each, so that each replica has a node. */
  #siteConfig(python: string): unknown {
    const config = parse(readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8'));
    const cpu = config.node_kinds.find(({ name }: { name: string }) => name === 'cpu-amx');
    cpu.devices = [{ kind: 'cpu', model: 'Xeon-8480+', count: 1, memory_gb: 4, cores: 4 }];
    config.node_kinds = [cpu];
    config.network = { prefer: this.#lease.cluster.hosts!.network, private_fabric: true };
    const prefix = ['/usr/bin/env', `PATH=${dirname(python)}:/usr/bin:/bin`];
    config.runtime = { engines: { vllm: { prefix } } };
    return config;
  }

  /** Types a command on the login node. */
  #hpcserve(...argv: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
    return this.#lease.cluster.runAs(
      'user',
      [process.execPath, join(packageRoot, 'cli/hpcserve.mjs'), ...argv],
      {
        cwd: this.#folder,
        env: { HOME: this.#folder, HPCSERVE_SITE: join(this.#folder, 'site.yaml') },
        timeout_ms: vllm_ready_ms + 60_000,
      },
    );
  }

  #write(name: string, content: unknown): void {
    const path = join(this.#folder, name);
    writeFileSync(path, JSON.stringify(content), { mode: 0o600 });
    this.#give(path);
  }

  #give(path: string): void {
    chownSync(path, this.#lease.cluster.user.uid, this.#lease.cluster.user.gid);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#hpcserve('stop', '--all', '--yes');
    await this.#lease.release();
    // What was killed may write until it has noticed.
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 10 });
  }
}
