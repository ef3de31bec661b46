/** The side of hpcserve: a deployment on the local site, as a person types it. */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { processesWithArgument } from '../../host/process-identity.ts';
import { type Home, temporaryHome } from '../../test/cli/support.ts';
import { type EngineCommand, engineCommands } from './bare-engine.ts';
import type { Endpoint } from './clients.ts';

const model = 'bench';
/** Of one replica: weights of 1.2 GB, what Python takes, and the rest for KV. Higher: more KV than the clients fill. */
const memory_gb = 5;
/** Beside the devices, for the node agent. */
const agent_gb = 2;

/** A deployment that serves, from `deploy` to `stop`, with a home of its own. */
export class Deployment implements AsyncDisposable {
  readonly endpoint: Endpoint;
  readonly engines: readonly EngineCommand[];
  readonly #home: Home;

  private constructor(home: Home, endpoint: Endpoint, engines: readonly EngineCommand[]) {
    this.#home = home;
    this.endpoint = endpoint;
    this.engines = engines;
  }

  /**
   * @param replicas each with an equal share of the cores of this machine
   * @throws Error: the words of `deploy`
   */
  static async open(model_folder: string, engine_bin: string, replicas: number): Promise<Deployment> {
    const home = temporaryHome();
    const env = { PATH: `${engine_bin}:${process.env.PATH}`, HPCSERVE_SITE: join(home.folder, 'site.yaml') };
    try {
      writeFileSync(env.HPCSERVE_SITE, siteOf(replicas));
      writeFileSync(join(home.folder, 'model.yaml'), modelOf(model_folder, replicas));
      const { code, stdout, stderr } = await home.run(['deploy', 'model.yaml', '--timeout', '15m'], {
        env,
        timeout_ms: 1_000_000,
      });
      if (code !== 0) throw new Error(`deploy ended with ${code}:\n${stderr}${stdout}`);
      const [, url] = /^URL +(\S+)$/m.exec(stdout)!;
      const [, key] = /^key +(\S+)$/m.exec(stdout)!;
      const engines = engineCommands(model_folder);
      if (engines.length !== replicas) throw new Error(`${engines.length} engines serve, not ${replicas}`);
      return new Deployment(home, { urls: [url!], key: key!, model }, engines);
    } catch (error) {
      await end(home);
      throw error;
    }
  }

  /** Processor time that each of our own processes has taken, by what it is; seconds. */
  processorTime(): Map<string, number> {
    const ticks_per_s = Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));
    const times = new Map<string, number>();
    for (const pid of processesWithArgument((argument) => argument.includes(`${this.#home.folder}/`))) {
      const what = /dist\/(?:bundle\/|control\/)?(gateway|agent|keeper)(?:\/|\.js)/.exec(
        readFileSync(`/proc/${pid}/cmdline`, 'utf8'),
      );
      if (!what) continue;
      const [, ...fields] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ');
      const [utime, stime] = fields.join(') ').split(' ').slice(11, 13).map(Number) as [number, number];
      times.set(`${what[1]} ${pid}`, (utime + stime) / ticks_per_s);
    }
    return times;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await end(this.#home);
  }
}

async function end(home: Home): Promise<void> {
  await home.run(['stop', '--all', '--yes'], { env: { HPCSERVE_SITE: join(home.folder, 'site.yaml') } });
  home.dispose();
}

/** One node whose cores are so many devices. */
function siteOf(devices: number): string {
  const cores = Math.max(1, Math.floor(availableParallelism() / devices));
  return `name: bench
kind: local
node_kinds:
  - name: this-machine
    count: 1
    interconnect: none
    devices: [{ kind: cpu, model: CPU, count: ${devices}, memory_gb: ${memory_gb}, cores: ${cores} }]
    cpus: ${cores * devices}
    memory_gb: ${(memory_gb + agent_gb) * devices}
`;
}

function modelOf(model_folder: string, replicas: number): string {
  return `name: bench
models:
  - name: ${model}
    source: ${model_folder}
    engine: vllm
    precision: bf16
    context_tokens: 2048
    engine_args: [--enforce-eager]
    replicas: ${replicas}
`;
}
