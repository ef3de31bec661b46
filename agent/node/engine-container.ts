/**
 * Engines that a site starts behind a prefix (`runtime.engines` of its config), which is a container mostly: the agent
 * is outside of it, and what both must see is bound.
 *
 *     agent ── <runtime folder>/engine.sock ── │ container: engine ── model, templates, adapters
 *
 * Where the runtime is known, binds are added; whether all is seen is tried inside, whatever the prefix is, before the
 * engine starts and is waited for.
 */
import { execFile } from 'node:child_process';
import { basename } from 'node:path';
import { promisify } from 'node:util';
import { pathsOfUnit } from '../../host/unit-paths.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { AgentLog } from './log.ts';

/** A container whose image has to be fetched first takes minutes; that is what its own start is for. */
const try_timeout_ms = 60_000;

/** Words of a prefix, and where it names a runtime whose options are known. */
interface Runtime {
  /** How it is told of a bind: by a variable, or by options behind its subcommand. */
  kind: 'apptainer' | 'podman' | 'enroot';
  /** Behind its subcommand. */
  options_at: number;
}

const subcommands: Record<Runtime['kind'], readonly string[]> = {
  apptainer: ['exec', 'run'],
  podman: ['run'],
  enroot: ['start'],
};
const programs: Readonly<Record<string, Runtime['kind']>> = {
  apptainer: 'apptainer',
  singularity: 'apptainer',
  podman: 'podman',
  'podman-hpc': 'podman',
  docker: 'podman',
  nerdctl: 'podman',
  enroot: 'enroot',
};

/** The prefix of a site with what one unit needs behind it. */
export class EngineContainer {
  readonly #prefix: readonly string[];
  readonly #runtime: Runtime | undefined;
  readonly #paths: readonly string[];
  readonly #runtime_folder: string;
  readonly #unit: UnitSpec;

  constructor(prefix: readonly string[], unit: UnitSpec, runtime_folder: string) {
    this.#prefix = prefix;
    this.#runtime = runtimeOf(prefix);
    this.#unit = unit;
    this.#runtime_folder = runtime_folder;
    this.#paths = prefix.length === 0 ? [] : [runtime_folder, ...pathsOfUnit(unit)];
  }

  /** The words of the site, with binds where its runtime takes them there. */
  get prefix(): string[] {
    switch (this.#runtime?.kind) {
      case 'podman':
        return this.#withOptions(this.#binds.map((path) => `--volume=${path}:${path}`));
      case 'enroot':
        return this.#withOptions(this.#binds.map((path) => `--mount=${path}:${path}`));
      default:
        return [...this.#prefix];
    }
  }

  /** What apptainer reads binds from, besides those of the person or site: it adds options and variables up. */
  environment(around: NodeJS.ProcessEnv): Record<string, string> {
    if (this.#runtime?.kind !== 'apptainer') return {};
    return Object.fromEntries(
      ['APPTAINER_BIND', 'SINGULARITY_BIND'].map((name) => {
        const before = around[name];
        return [name, [...(before ? [before] : []), ...this.#binds].join(',')];
      }),
    );
  }

  /**
   * The command line, with the names of variables that a runtime hands on only where it is told to.
   * @param argv begins with `prefix`
   */
  withVariables(argv: readonly string[], names: Iterable<string>): string[] {
    const { kind, options_at } = this.#runtime ?? {};
    if (options_at === undefined || kind === 'apptainer') return [...argv];
    const option =
      kind === 'enroot' ? (name: string) => ['--env', name] : (name: string) => [`--env=${name}`];
    return [...argv.slice(0, options_at), ...[...names].flatMap(option), ...argv.slice(options_at)];
  }

  /**
   * Tries whether all of it is seen behind the prefix. A prefix that does not even start a shell is no answer: the
   * engine is started, and says itself what is wrong.
   * @param environment with that of `environment`
   * @throws HpcserveError E_AGENT_ENGINE_PATHS
   */
  async check(environment: NodeJS.ProcessEnv, signal: AbortSignal, log: AgentLog): Promise<void> {
    if (this.#prefix.length === 0) return;
    const [program, ...args] = [...this.prefix, 'sh', '-c', lookAround, 'sh', ...this.#paths];
    let said: string;
    try {
      const { stdout } = await promisify(execFile)(program!, args, {
        env: environment,
        timeout: try_timeout_ms,
        signal,
      });
      said = stdout;
    } catch (error) {
      signal.throwIfAborted();
      log.warn(
        { unit: this.#unit.unit, reason: (error as Error).message.slice(0, 500) },
        'what the engine sees of this node could not be tried',
      );
      return;
    }
    const unseen = said.split('\n').flatMap((line) => /^hpcserve unseen: (.*)$/.exec(line)?.[1] ?? []);
    if (unseen.length > 0) throw this.#unseen(unseen);
  }

  #unseen(paths: readonly string[]): HpcserveError {
    const socket = paths.includes(this.#runtime_folder);
    const example = paths[0]!;
    return new HpcserveError('E_AGENT_ENGINE_PATHS', {
      what: `${this.#unit.engine} would not see ${paths.join(', ')} where the site starts it`,
      because: [
        `its prefix is: ${this.#prefix.join(' ')}`,
        ...(socket
          ? [`${this.#runtime_folder} holds the socket by which the agent would speak to it`]
          : [`${this.#unit.model.name} needs it`]),
      ],
      try: `bind it in the prefix of runtime.engines: --bind=${example} (apptainer), --volume=${example}:${example} (podman)`,
      details: { paths: [...paths] },
    });
  }

  /** Names that a bind cannot hold are left out, and so are found missing. */
  get #binds(): readonly string[] {
    return this.#paths.filter((path) => !/[,:]/.test(path));
  }

  #withOptions(options: readonly string[]): string[] {
    const { options_at = 0 } = this.#runtime ?? {};
    return [...this.#prefix.slice(0, options_at), ...options, ...this.#prefix.slice(options_at)];
  }
}

/** The first path is written to, the others are read. */
const lookAround =
  '[ -w "$1" ] || echo "hpcserve unseen: $1"; shift; for path; do [ -r "$path" ] || echo "hpcserve unseen: $path"; done';

function runtimeOf(prefix: readonly string[]): Runtime | undefined {
  const at = prefix.findIndex((word) => programs[basename(word)] !== undefined);
  if (at < 0) return undefined;
  const kind = programs[basename(prefix[at]!)]!;
  const subcommand = prefix.findIndex((word, index) => index > at && subcommands[kind].includes(word));
  return subcommand < 0 ? undefined : { kind, options_at: subcommand + 1 };
}
