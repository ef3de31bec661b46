/**
 * Containers that are no children of what started them: `podman run`, and docker and nerdctl alike.
 *
 *     agent ── podman run (client)          conmon ── container: engine
 *       └──── guard
 *
 * A client that is killed leaves its container behind, and with it a device that is not free. So each has a name that
 * says whose it is, and is ended by it
 *
 * - by the agent, whenever the client has ended;
 * - by the agent's guard, where the agent was killed: it finds what to type in a file beside the folder of the start;
 * - by the next agent on that node, where the guard was killed too, as where Slurm kills all that a job started.
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { rmSync, writeFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { bootId, identityOf, isAlive, pidNamespace } from '../../host/process-identity.ts';
import { containerRuntimeOf } from './container-runtime.ts';
import type { AgentLog } from './log.ts';

/** For one command of a runtime. Lower: one that works on a slow disk is taken for stuck. */
const command_timeout_ms = 30_000;
const beginning = 'hpcserve-agent';

/** Where the guard of an agent looks, by the folder of a start. */
function fileOf(runtime_folder: string): string {
  return `${runtime_folder}.container`;
}

/** One start of an engine in a container. */
export class DetachedContainer {
  readonly name: string = `${ownMark()}.${randomBytes(6).toString('hex')}`;
  readonly #client: readonly string[];
  readonly #file: string;
  #pid: number | undefined;

  /** @param client words that a subcommand follows */
  constructor(client: readonly string[], runtime_folder: string) {
    this.#client = client;
    this.#file = fileOf(runtime_folder);
  }

  /** To be known to the guard before it starts. The container itself does not see the file. */
  register(): void {
    writeFileSync(this.#file, [this.name, ...this.#client].map((word) => `${word}\0`).join(''), {
      mode: 0o600,
      flag: 'wx',
    });
  }

  /** Its first process, as this node counts them; undefined as long as it does not run. */
  async pid(environment: NodeJS.ProcessEnv): Promise<number | undefined> {
    if (this.#pid !== undefined) return this.#pid;
    const inspect = [...this.#client, 'inspect', '--format', '{{.State.Pid}}', this.name];
    const { output } = await run(inspect, environment);
    const pid = Number(output.trim());
    if (Number.isInteger(pid) && pid > 0) this.#pid = pid;
    return this.#pid;
  }

  /** Ends it if it lives, and removes it. Where that fails, the log says so. */
  async end(environment: NodeJS.ProcessEnv, log: AgentLog): Promise<void> {
    await removeContainer(this.#client, this.name, environment, log);
    rmSync(this.#file, { force: true });
  }
}

/** Ends what agents of this node left behind that were killed together with their guards. */
export async function endLeftContainers(
  engine_prefix: readonly string[],
  environment: NodeJS.ProcessEnv,
  log: AgentLog,
): Promise<void> {
  const client = clientOf(engine_prefix);
  if (client === undefined) return;
  const { names, error } = await containersNamed(client, beginning, environment);
  if (error !== undefined) {
    log.warn({ reason: error }, 'whether containers of earlier agents are left could not be seen');
    return;
  }
  for (const name of names.filter(isLeft)) {
    log.warn({ container: name }, 'a container of an agent that is gone is ended');
    await removeContainer(client, name, environment, log);
  }
}

/** Words before the subcommand of a runtime whose containers are detached; undefined for any other prefix. */
export function clientOf(engine_prefix: readonly string[]): readonly string[] | undefined {
  const runtime = containerRuntimeOf(engine_prefix);
  return runtime?.kind === 'podman' ? engine_prefix.slice(0, runtime.options_at - 1) : undefined;
}

/** Who started it: an agent, by what the kernel never gives to another process. */
function ownMark(): string {
  const { pid, start_ticks, boot_id } = identityOf(process.pid)!;
  return [beginning, boot_id, namespaceNumber(), pid, start_ticks].join('.');
}

/** Those of another boot or another host, or of agents in containers of their own, are not ours to judge. */
function isLeft(name: string): boolean {
  const [, boot_id, namespace, pid, start_ticks] = name.split('.');
  if (boot_id !== bootId() || namespace !== namespaceNumber()) return false;
  return !isAlive({ pid: Number(pid), start_ticks: Number(start_ticks), boot_id });
}

function namespaceNumber(): string {
  return /\d+/.exec(pidNamespace())![0];
}

async function removeContainer(
  client: readonly string[],
  name: string,
  environment: NodeJS.ProcessEnv,
  log: AgentLog,
): Promise<void> {
  const before = await containersNamed(client, name, environment);
  if (before.error === undefined && before.names.length === 0) return;
  // One that has ended meanwhile is not there to be killed; whether it is there in the end is what counts.
  const { error: notKilled } = await run([...client, 'kill', name], environment);
  const { error: notRemoved } = await run([...client, 'rm', '--force', name], environment);
  const after = await containersNamed(client, name, environment);
  if (after.error === undefined && after.names.length === 0) return;
  const reason = after.error ?? notRemoved ?? notKilled;
  log.error({ container: name, reason }, 'the container of an engine could not be ended');
}

/** Running or not. */
async function containersNamed(
  client: readonly string[],
  name: string,
  environment: NodeJS.ProcessEnv,
): Promise<{ names: string[]; error?: string }> {
  const list = ['ps', '--all', '--filter', `name=${name}`, '--format', '{{.Names}}'];
  const { output, error } = await run([...client, ...list], environment);
  const names = output.split('\n').filter((line) => line.startsWith(name));
  return error === undefined ? { names } : { names, error };
}

async function run(
  [program, ...args]: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<{ output: string; error?: string }> {
  try {
    const options = { env: environment, timeout: command_timeout_ms };
    return { output: (await promisify(execFile)(program!, args, options)).stdout };
  } catch (error) {
    return { output: '', error: (error as Error).message.slice(0, 500) };
  }
}
