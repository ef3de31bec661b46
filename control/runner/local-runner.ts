import { spawn } from 'node:child_process';
import { accessSync, closeSync, constants, existsSync, openSync, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import {
  bootId,
  childrenOf,
  identityOf,
  isAlive,
  type ProcessIdentity,
  processesOfSession,
  processesWithArgument,
  readProcessStat,
  signalProcess,
} from '../../host/process-identity.ts';
import { readProcessors } from '../../host/processors.ts';
import { compiledFile } from '../../host/programs.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { shellQuote } from '../../slurm/quote.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { launchSchema } from '../../spec/launch.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { JobSnapshot } from '../state/job-snapshot.ts';
import { readStateFile } from '../state/state-file.ts';
import { describeAgentExit } from './agent-end.ts';
import type { JobRunner, PreparedLaunch, RenderedScript } from './job-runner.ts';

/** Files of the local runner in a launch folder. */
const files = { process: 'process.json', exitCode: 'exit-code' } as const;

const processFileSchema = z.object({
  pid: z.int(),
  start_ticks: z.number(),
  boot_id: z.string(),
  host: z.string(),
  started_at_ms: z.number(),
}) satisfies z.ZodType<ProcessIdentity>;
type ProcessFile = z.infer<typeof processFileSchema>;

/** $1 the file for the exit code, then the command. A signal to sh waits in its trap until the child ended. */
const wrapper = [
  'exit_file=$1; shift',
  'trap : TERM INT HUP',
  '"$@"',
  'code=$?',
  // Builtins only: PATH may be anything. The file is read when this shell has ended, so it is whole.
  `printf '%s\\n' "$code" >"$exit_file"`,
  'exit "$code"',
].join('\n');

/**
 * The runner of the `local` site: node agents as child processes that outlive the command. Each runs in a
 * session of its own under a few lines of sh, which play the part of Slurm's batch script: they wait for
 * the agent and write its exit code down, whoever has gone meanwhile.
 */
export class LocalRunner implements JobRunner {
  readonly kind = 'local';
  readonly poll_interval_ms = 250;
  readonly settle_ms = 5_000;
  readonly #agent: readonly string[];
  readonly #environment: Readonly<Record<string, string>>;

  /**
   * @param agent the command of the node agent; `--launch FILE` is added. Tests put their own.
   * @param environment of agents, where the person's own does not say otherwise
   */
  constructor(
    agent: readonly string[] = [process.execPath, compiledFile('agent/main.js')],
    environment: Readonly<Record<string, string>> = {},
  ) {
    this.#agent = agent;
    this.#environment = environment;
  }

  render(prepared: PreparedLaunch): RenderedScript {
    const argv = [...this.#agent, '--launch', prepared.launch_file].map(shellQuote);
    const text = `#!/bin/sh\n# The local site has no scheduler: hpcserve starts this command itself, in a session of its own.\nexec ${argv.join(' ')}\n`;
    return { text, directives: [] };
  }

  /**
   * Cores that no node agent of this person was given here; all deployments count, whatever folder they lie in. None
   * where so many are not left: then the system shares them out.
   */
  freeCores({ cpus_per_node: count }: Pick<PlannedLaunch, 'cpus_per_node'>): number[] | undefined {
    const taken = new Set(allLaunchFiles().flatMap(coresOf));
    const free = readProcessors().allowed_cores.filter((core) => !taken.has(core));
    return free.length < count ? undefined : free.slice(0, count);
  }

  /** Processes of this machine are in no queue. */
  async admit(count: number): Promise<number> {
    return count;
  }

  async submit(prepared: PreparedLaunch): Promise<{ job_id: string; where: string }> {
    const { launch_folder, launch_file } = prepared;
    const log = openSync(join(launch_folder, launchFiles.log), 'a', 0o600);
    try {
      const child = spawn(
        '/bin/sh',
        [
          '-c',
          wrapper,
          'hpcserve-job',
          join(launch_folder, files.exitCode),
          ...this.#agent,
          '--launch',
          launch_file,
        ],
        {
          cwd: launch_folder,
          detached: true,
          stdio: ['ignore', log, log],
          env: { ...this.#environment, ...agentEnvironment() },
        },
      );
      await new Promise<void>((resolve, reject) => child.once('spawn', resolve).once('error', reject));
      child.unref();
      const pid = child.pid!;
      this.#writeProcessFile(launch_folder, pid);
      return { job_id: jobIdOf(pid), where: hostname() };
    } catch (error) {
      throw new HpcserveError('E_LOCAL_PROCESS', {
        what: 'a node agent could not be started',
        because: (error as Error).message,
        cause: error,
      });
    } finally {
      closeSync(log);
    }
  }

  /** Looks for the sh of this launch by its arguments: it is there from the first moment. */
  async find(launchId: string): Promise<string[]> {
    const found: string[] = [];
    for (const pid of allAgentPids(launchId)) {
      // The sh leads its session; the agent below it has the same arguments.
      if (readProcessStat(pid)?.session === pid) found.push(jobIdOf(pid));
    }
    return found;
  }

  async poll(jobs: readonly { job_id: string; launch_folder: string }[]): Promise<Map<string, JobSnapshot>> {
    return new Map(jobs.map((job) => [job.job_id, this.#inspect(job)]));
  }

  async cancel(
    job: { job_id: string; launch_folder: string },
    options: { force?: boolean } = {},
  ): Promise<void> {
    const pid = pidOf(job.job_id);
    const identity = this.#readProcessFile(job.launch_folder);
    if (identity && identity.host !== hostname())
      throw new HpcserveError('E_LOCAL_PROCESS', {
        what: `a node agent runs on another host: ${identity.host}`,
        because: 'the local site has no scheduler that could end it from here',
        try: `run the same command on ${identity.host}`,
      });
    if (identity && identity.boot_id !== bootId()) return;
    if (options.force) {
      for (const each of processesOfSession(pid)) signalProcess(each, 'SIGKILL');
      return;
    }
    if (!identity || identity.pid !== pid || !isAlive(identity)) {
      // The sh is gone; what it left behind in its session goes too.
      for (const each of processesOfSession(pid)) signalProcess(each, 'SIGTERM');
      return;
    }
    // Only the agent: it ends its workers itself, in order.
    for (const agent of childrenOf(pid)) signalProcess(agent, 'SIGTERM');
  }

  #inspect({ job_id, launch_folder }: { job_id: string; launch_folder: string }): JobSnapshot {
    const pid = pidOf(job_id);
    const identity = this.#readProcessFile(launch_folder) ?? this.#adopt(launch_folder, pid);
    const base = { job_id, nodes: identity?.host ?? hostname() };
    if (identity && identity.host !== hostname())
      return {
        ...base,
        phase: 'running',
        state: 'ELSEWHERE',
        reason: `it runs on ${identity.host}; only a command there can see it`,
      };
    if (identity && isAlive(identity))
      return { ...base, phase: 'running', state: 'RUNNING', start_time_ms: identity.started_at_ms };
    const left = identity ? processesOfSession(identity.pid) : [];
    if (left.length > 0)
      return {
        ...base,
        phase: 'completing',
        state: 'COMPLETING',
        reason: `${left.length} process(es) still end`,
      };
    return { ...base, phase: 'ended', ...endOf(readExitCode(launch_folder)) };
  }

  /** A process that was found after a crash has no process file yet. */
  #adopt(launchFolder: string, pid: number): ProcessFile | undefined {
    if (!identityOf(pid)) return undefined;
    return this.#writeProcessFile(launchFolder, pid);
  }

  #writeProcessFile(launchFolder: string, pid: number): ProcessFile | undefined {
    const identity = identityOf(pid);
    if (!identity) return undefined;
    const file: ProcessFile = { ...identity, host: hostname(), started_at_ms: Date.now() };
    writeFileAtomically(join(launchFolder, files.process), `${JSON.stringify(file)}\n`);
    return file;
  }

  #readProcessFile(launchFolder: string): ProcessFile | undefined {
    return readStateFile(join(launchFolder, files.process), processFileSchema);
  }
}

function endOf(code: number | undefined): Pick<JobSnapshot, 'state' | 'exit_code' | 'signal' | 'reason'> {
  if (code === undefined)
    return {
      state: 'LOST',
      reason: 'the process ended without an exit code: it was killed, or the host restarted',
    };
  if (code === 0) return { state: 'COMPLETED', exit_code: 0 };
  const reason = describeAgentExit(code);
  return {
    state: 'FAILED',
    exit_code: code,
    signal: code > 128 ? code - 128 : undefined,
    reason,
  };
}

function readExitCode(launchFolder: string): number | undefined {
  const path = join(launchFolder, files.exitCode);
  const code = existsSync(path) ? readFileSync(path, 'utf8').trim() : '';
  // Empty: the disk was full, or the shell was killed in the middle.
  return /^\d+$/.test(code) ? Number(code) : undefined;
}

/** What `launch.json` says of cores. */
const launchCoresSchema = z.object({ cores: launchSchema.shape.cores });

/** Cores of a launch; none where it was given none, or is somebody else's. */
function coresOf(launchFile: string): number[] {
  try {
    accessSync(launchFile, constants.R_OK);
  } catch {
    return [];
  }
  return readStateFile(launchFile, launchCoresSchema)?.cores ?? [];
}

/** Of the node agents that run here, as far as their arguments may be read. */
function allLaunchFiles(): string[] {
  const files = new Set<string>();
  processesWithArgument((argument) => {
    if (/\/[0-9a-f]{16}\/launch\.json$/.test(argument)) files.add(argument);
    return false;
  });
  return [...files];
}

function allAgentPids(launchId: string): number[] {
  // The launch file's path ends in `<launch_id>/launch.json`; the id alone is matched so that symbolic links do not
  // matter.
  return processesWithArgument((argument) => argument.endsWith(`/${launchId}/${launchFiles.launch}`));
}

function jobIdOf(pid: number): string {
  return `p${pid}`;
}

function pidOf(jobId: string): number {
  return Number(jobId.slice(1));
}

/** The environment of the person, without what would change where state lies or leak a key. */
function agentEnvironment(): NodeJS.ProcessEnv {
  const environment = { ...process.env };
  delete environment.HPCSERVE_API_KEY;
  delete environment.OPENAI_API_KEY;
  return environment;
}
