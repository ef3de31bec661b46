/** The side of hpcserve: a deployment on the local site, as a person types it. */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { processesWithArgument } from '../../host/process-identity.ts';
import { type Home, temporaryHome } from '../../test/cli/support.ts';
import type { Endpoint } from './clients.ts';

const model = 'bench';
/** Beside the devices, for the node agent. */
const agent_gb = 2;

/** What is deployed, on devices that each have an equal share of the cores of this machine. */
export interface DeploymentSetup {
  /** Keys of the model in model.yaml beside its name, one a line. */
  model: readonly string[];
  replicas: number;
  /** Of each replica. Higher: more KV than the clients fill. */
  memory_gb: number;
  /** Where the programs of the engine are, if it has any. */
  engine_bin?: string;
}

/** A deployment that serves, from `deploy` to `stop`, with a home of its own. */
export class Deployment implements AsyncDisposable {
  /** Its gateway. */
  readonly endpoint: Endpoint;
  readonly #home: Home;

  private constructor(home: Home, endpoint: Endpoint) {
    this.#home = home;
    this.endpoint = endpoint;
  }

  /** @throws Error: the words of `deploy` */
  static async open(setup: DeploymentSetup): Promise<Deployment> {
    const home = temporaryHome();
    const path = [setup.engine_bin, process.env.PATH].filter((folder) => folder !== undefined).join(':');
    const env = { PATH: path, HPCSERVE_SITE: join(home.folder, 'site.yaml') };
    try {
      writeFileSync(env.HPCSERVE_SITE, siteOf(setup));
      writeFileSync(join(home.folder, 'model.yaml'), modelOf(setup));
      const { code, stdout, stderr } = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '15m'], {
        env,
        timeout_ms: 1_000_000,
      });
      if (code !== 0) throw new Error(`deploy ended with ${code}:\n${stderr}${stdout}`);
      const [, url] = /^URL +(\S+)$/m.exec(stdout)!;
      const [, key] = /^key +(\S+)$/m.exec(stdout)!;
      return new Deployment(home, { servers: [{ url: url!, key: key! }], model });
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
function siteOf({ replicas, memory_gb }: DeploymentSetup): string {
  const cores = Math.max(1, Math.floor(availableParallelism() / replicas));
  return `name: bench
kind: local
node_kinds:
  - name: this-machine
    count: 1
    interconnect: none
    devices: [{ kind: cpu, model: CPU, count: ${replicas}, memory_gb: ${memory_gb}, cores: ${cores} }]
    cpus: ${cores * replicas}
    memory_gb: ${(memory_gb + agent_gb) * replicas}
`;
}

function modelOf(setup: DeploymentSetup): string {
  const lines = [...setup.model, `replicas: ${setup.replicas}`].map((line) => `    ${line}\n`);
  return `name: bench
models:
  - name: ${model}
${lines.join('')}`;
}
