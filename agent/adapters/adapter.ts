import type { EngineLimits } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { NodeDevice } from '../devices/node-device.ts';

/** Where an engine listens: nothing that others on the node can reach without a key. */
type Listen = { kind: 'socket'; path: string } | { kind: 'loopback'; port: number };

export interface AdapterContext {
  /** A 0700 folder of this unit alone, short enough for sockets in it. */
  runtime_folder: string;
  /** A free port on loopback, for engines that cannot listen on a socket. */
  port: number;
  /** Made for this start of the unit; 64 hex digits. */
  key: string;
  /** How engines are started on this site (`runtime` of the site config): environment, container, nothing. */
  engine_prefix: readonly string[];
  /** What `probe` found; absent where it could not be asked. */
  probed?: EngineProbe | undefined;
  emulated: boolean;
  /** Those it has; absent: it is not about them. */
  devices?: readonly NodeDevice[];
  /** Cores that its processes keep to; absent: it is not bound. */
  cores?: readonly number[] | undefined;
  /** Where the replica is on several nodes; absent: all of it is on this one. */
  place?: EngineRankPlace;
}

export interface EngineRankPlace {
  /** 0: the first, which answers requests. */
  rank: number;
  nodes: number;
  own_address: string;
  /** Where its ranks find each other: an address and a free port of the first node. */
  leader: { address: string; port: number };
}

export interface EngineProbe {
  version: string;
  /** Whether this version listens on unix sockets. */
  unix_socket: boolean;
  /** Long options that it has, with their dashes; absent: it was not asked for them. */
  options?: ReadonlySet<string>;
  /**
   * Who says so; absent: its help. Sources are those of an engine in Python, whose argparse takes more ways of writing
   * an option. Plugins may add options that the sources do not have.
   */
  options_by?: 'sources' | 'sources and plugins';
  /** Names that it takes for what reads tool calls and reasoning out of answers; absent: it was not asked. */
  tool_parsers?: ReadonlySet<string>;
  reasoning_parsers?: ReadonlySet<string>;
  /** It takes devices by number alone: it ends where a UUID names one. */
  device_numbers?: true;
}

export interface CommandLine {
  /** Program and arguments, the site's prefix included; never a secret. */
  argv: string[];
  /** Added to the environment of the agent. The per-launch key travels here or in `files`. */
  env: Record<string, string>;
  listen: Listen;
  /** Files to write (0600) into the runtime folder before the start. */
  files: { path: string; content: string }[];
  /** Symbolic links to make in the runtime folder before the start. */
  links: { path: string; target: string }[];
  /** Working directory. Absent: the agent's. */
  cwd?: string;
  /** What it will not do for the model, in words for the log. */
  notices?: readonly string[];
  /** It can be told to give up its device memory while nobody asks for it; absent: it cannot. */
  sleep?: SleepPaths;
  /** A unix socket at which it publishes what its KV cache holds (ZeroMQ, in vLLM's format); absent: it does not. */
  kv_events?: string;
}

/** Paths of an engine, each for POST, which answer once it is done. */
export interface SleepPaths {
  sleep: string;
  wake: string;
}

/** What an engine reports of its load; absent fields are not known. */
export interface EngineLoad {
  running?: number;
  waiting?: number;
  kv_tokens_total?: number;
  kv_tokens_used?: number;
  /** A number that changes while it computes. */
  activity?: number;
  /** Tokens of prompts that it looked for in its prefix cache since its start, and found there. */
  prefix_queried_tokens?: number;
  prefix_found_tokens?: number;
}

/** How one kind of engine is started, asked and understood. */
export interface EngineAdapter {
  readonly name: Exclude<UnitSpec['engine'], 'native'>;
  /** A command that prints an EngineProbe, or something `parseProbe` understands; absent: nothing to ask. */
  probeArgv?(prefix: readonly string[]): string[];
  /** Another one, where no single command says all; `parseProbe` has the output of both. */
  furtherProbeArgv?(prefix: readonly string[]): string[];
  parseProbe?(output: string): EngineProbe | undefined;
  /**
   * What tells an engine on CPUs how many threads to have, and where; the environment of model.yaml is stronger.
   * Absent: OMP_NUM_THREADS does.
   * @param cores its own, those of one physical core together
   */
  threadEnvironment?(unit: UnitSpec, cores: readonly (readonly number[])[]): Record<string, string>;
  /** @throws HpcserveError E_AGENT_ENGINE_OPTION where the model asks for what this engine cannot do */
  commandLine(unit: UnitSpec, context: AdapterContext): CommandLine;
  /**
   * Paths for which it asks for no key, where it listens on a port: it is then run in a network namespace of its own,
   * as far as the node permits. Absent: its key covers whatever computes or tells.
   */
  readonly open_paths?: readonly string[];
  /** Its prefix cache keeps requests with another `cache_salt` apart. */
  readonly takes_cache_salt?: true;
  /**
   * For POST with `model` and `tokens`: answers with the text of the tokens, as `prompt` or `text`. Absent: it spells
   * none.
   */
  readonly detokenize_path?: string;
  /** For POST with `model` and `prompt` or `messages`: answers with `tokens` and `count`. Absent: it tells none. */
  readonly tokenize_path?: string;
  /** Answers 2xx when, and only when, requests are served. */
  readonly readiness_path: string;
  /** Prometheus text with the engine's load; absent: the agent counts requests itself. */
  readonly metrics_path?: string;
  parseMetrics?(text: string, unit: UnitSpec): EngineLoad;
  /** Where it tells what it chose itself. */
  readonly limit_paths?: readonly string[];
  /** @param answers of `limit_paths`, empty where there was none; `log`: the beginning of what it wrote */
  parseLimits?(answers: readonly string[], log: string): EngineLimits;
}

/** Of what a model asks for and an engine cannot do. */
export function unsupportedOption(model: ModelSpec, engine: string, what: string): HpcserveError {
  return new HpcserveError('E_AGENT_ENGINE_OPTION', {
    what: `${model.name}: ${engine} has no ${what}`,
    try: `remove ${what} from model.yaml, or choose another engine`,
  });
}

/** Long options that a program's help names. */
export function optionsInHelp(help: string): ReadonlySet<string> {
  return new Set(help.match(/(?<![\w-])--[a-z][a-z0-9-]*/gi) ?? []);
}

/**
 * Refuses a command line that the installed version would refuse after it has loaded for minutes.
 * @throws HpcserveError E_AGENT_ENGINE_OPTION
 */
export function checkEngineOptions(unit: UnitSpec, probe: EngineProbe, argv: readonly string[]): void {
  const { version, options, options_by } = probe;
  if (options === undefined || options.size === 0) return;
  const nameOf = (word: string): string => word.split('=', 1)[0]!;
  const isOwn = (name: string): boolean => unit.model.engine_args.some((word) => nameOf(word) === name);
  const unknown = argv
    .filter((word) => /^--[a-z]/i.test(word))
    .map(nameOf)
    .filter((name) => options_by !== 'sources and plugins' || !isOwn(name))
    .find((name) => !(options_by === undefined ? options.has(name) : isOfArgparse(name, options)));
  if (unknown === undefined) return;
  const own = isOwn(unknown);
  const where = options_by === undefined ? 'its --help' : 'what is installed';
  throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
    what: `${unit.model.name}: ${unit.engine} ${version} has no option ${unknown}`,
    because: own ? `engine_args of model.yaml names it, and ${where} does not` : `${where} does not name it`,
    try: own
      ? 'compare engine_args with what this version takes (its --help), or use the version they are for'
      : 'install a version that has it',
  });
}

/**
 * An option as argparse and what vLLM makes of it take them: any unambiguous beginning, `_` for `-`, `--no-…` of what
 * is yes or no, and a member of what is an object (`--compilation-config.level`).
 */
function isOfArgparse(name: string, options: ReadonlySet<string>): boolean {
  const written = name.split('.', 1)[0]!.replaceAll('_', '-');
  const meant = [written, written.replace(/^--no-/, '--')];
  return meant.some((word) => options.has(word) || [...options].some((option) => option.startsWith(word)));
}

/** An option that is passed where the installed version is known to have it, and is missed by nobody elsewhere. */
export function optionIfKnown(probe: EngineProbe | undefined, name: string, ...values: string[]): string[] {
  return probe?.options?.has(name) ? [name, ...values] : [];
}

/** IPv6 in brackets. */
export function hostAndPort({ address, port }: { address: string; port: number }): string {
  return `${address.includes(':') ? `[${address}]` : address}:${port}`;
}

/** `--name value` for values that are given. */
export function option(name: string, value: string | number | undefined): string[] {
  return value === undefined ? [] : [name, String(value)];
}

/** Sum over label sets of a Prometheus sample; undefined where the metric is absent. */
export function metricValue(text: string, name: string): number | undefined {
  let sum: number | undefined;
  for (const line of text.split('\n')) {
    if (!line.startsWith(name)) continue;
    const match = /^(?:\{.*\})?\s+(\S+)/.exec(line.slice(name.length));
    const value = Number(match?.[1]);
    if (match && Number.isFinite(value)) sum = (sum ?? 0) + value;
  }
  return sum;
}

/** The sum of those that are there; undefined where none is. */
export function metricSum(text: string, names: readonly string[]): number | undefined {
  const found = names.flatMap((name) => metricValue(text, name) ?? []);
  return found.length === 0 ? undefined : found.reduce((sum, value) => sum + value, 0);
}

/** As `EngineLoad`, without the fields that are not known. */
export function loadOf(fields: { [K in keyof EngineLoad]: number | undefined }): EngineLoad {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
