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
import { promisify } from 'node:util';
import { pathsOfUnit } from '../../host/unit-paths.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { type ContainerRuntime, containerRuntimeOf } from './container-runtime.ts';
import { clientOf, DetachedContainer } from './detached-container.ts';
import type { AgentLog } from './log.ts';

/** A container whose image has to be fetched first takes minutes; that is what its own start is for. */
const try_timeout_ms = 60_000;

/** The prefix of a site with what one unit needs behind it. */
export class EngineContainer {
  /** Where what runs behind the prefix is no child of it; absent: it ends with its process group. */
  readonly detached: DetachedContainer | undefined;
  readonly #prefix: readonly string[];
  readonly #runtime: ContainerRuntime | undefined;
  readonly #paths: readonly string[];
  readonly #runtime_folder: string;
  readonly #unit: UnitSpec;

  constructor(prefix: readonly string[], unit: UnitSpec, runtime_folder: string) {
    this.#prefix = prefix;
    this.#runtime = containerRuntimeOf(prefix);
    const client = clientOf(prefix);
    this.detached = client && new DetachedContainer(client, runtime_folder);
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
   * The command line of the engine, with the names of variables that a runtime hands on only where it is told to, a
   * name to end it by, and the folder that it is to run in.
   * @param argv begins with `prefix`
   */
  started(argv: readonly string[], names: Iterable<string>, cwd?: string): string[] {
    const { kind, options_at } = this.#runtime ?? {};
    if (options_at === undefined || kind === 'apptainer') return [...argv];
    const option =
      kind === 'enroot' ? (name: string) => ['--env', name] : (name: string) => [`--env=${name}`];
    const own: string[] = [];
    if (this.detached !== undefined) own.push(`--name=${this.detached.name}`);
    if (cwd !== undefined && kind === 'podman') own.push(`--workdir=${cwd}`);
    own.push(...[...names].flatMap(option));
    const { length } = this.prefix;
    // Enroot has no option for it.
    const within = cwd !== undefined && kind === 'enroot' ? ['sh', '-c', 'cd "$0" && exec "$@"', cwd] : [];
    return [
      ...argv.slice(0, options_at),
      ...own,
      ...argv.slice(options_at, length),
      ...within,
      ...argv.slice(length),
    ];
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
