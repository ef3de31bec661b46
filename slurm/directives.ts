/** From site config, node kind and model.yaml to the #SBATCH options of one job, each with its origin. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { SlurmOverrides } from '../spec/model-yaml.ts';
import { type SiteConfig, slurmSettings } from '../spec/site.ts';
import type { NodeKind } from '../spec/site-nodes.ts';
import type { GpuRequest, SlurmDefaults } from '../spec/site-slurm.ts';
import { type Directive, formatSlurmDuration, parseSlurmDuration_s } from '../spec/slurm-types.ts';
import { arrayTaskFolder } from '../spec/state-layout.ts';

/**
 * Where a key path such as `slurm.defaults.qos` or `node_kinds.0.slurm.qos` stands in its file:
 * `site.yaml:12:7`, or undefined when it is not written there. `YamlFile.provenance` is one.
 */
export type Locate = (keyPath: string) => string | undefined;

/** What one job asks Slurm for, besides what the site always asks. */
export interface JobRequest {
  job_name: string;
  nodes: number;
  /** Devices of the node kind's gres on each node; 0: none. */
  gpus_per_node: number;
  cpus_per_node?: number;
  memory_mb_per_node?: number;
  time_limit_s?: number;
  /** Shortest time that is still of use; lets Slurm fit the job into a gap (--time-min). */
  time_min_s?: number;
  /**
   * Absolute path, of an array a name in each task's folder; everything the script and its steps print is appended to
   * it.
   */
  log_file: string;
  /** Absolute path of the job's working folder; of an array, that in which each task has one. */
  working_folder: string;
  /** So many equal jobs in one, numbered from 0. */
  array_tasks?: number;
  /** What follows `hpcserve:` in the job's comment. */
  launch_id: string;
  tier: 'stable' | 'scavenger';
  /** Whether Slurm may put it back into the queue, whatever the site has for its tier. */
  requeue?: boolean;
}

export interface DirectiveInput {
  site: SiteConfig;
  /** Absent for the gateway's job. */
  node_kind?: NodeKind;
  request: JobRequest;
  /** `slurm:` of model.yaml. */
  overrides?: SlurmOverrides;
  /** Origins in the site config. */
  locateSite?: Locate;
  /** Origins in model.yaml (key paths `slurm.…`). */
  locateOverrides?: Locate;
  /** For $SBATCH_ACCOUNT and its like. Default: none. */
  environment?: Readonly<Record<string, string | undefined>>;
}

/** The options of a job: `typed` ones, and `extra` lines that go into the script as they are. */
export interface JobDirectives {
  typed: Directive[];
  extra: Directive[];
}

/** Layers of settings, the strongest first. */
interface Layer {
  settings: Partial<SlurmDefaults>;
  source: (key: string) => string;
}

/**
 * The options of one job.
 * @throws E_SLURM_TIME_LIMIT when the job asks for more time than its node kind allows.
 * @throws E_SLURM_SCRIPT when the log path cannot be written as an option.
 */
export function buildDirectives(input: DirectiveInput): JobDirectives {
  const { site, request } = input;
  const settings = slurmSettings(site);
  const layers = settingLayers(input);
  const own = 'hpcserve';
  const typed: Directive[] = [
    { name: 'job-name', value: request.job_name, source: own },
    { name: 'chdir', value: request.working_folder, source: own },
    { name: 'output', value: logPattern(request), source: own },
    { name: 'open-mode', value: 'append', source: own },
    { name: 'nodes', value: String(request.nodes), source: own },
    { name: 'ntasks-per-node', value: '1', source: own },
  ];
  if (request.array_tasks !== undefined)
    typed.push({ name: 'array', value: `0-${request.array_tasks - 1}`, source: 'slurm.array' });
  if (request.cpus_per_node !== undefined)
    typed.push({ name: 'cpus-per-task', value: String(request.cpus_per_node), source: own });
  if (request.memory_mb_per_node !== undefined)
    typed.push({ name: 'mem', value: `${request.memory_mb_per_node}M`, source: own });
  typed.push(...gpuDirectives(input), ...timeDirectives(input, layers));
  for (const key of ['partition', 'account', 'qos', 'reservation'] as const) {
    const chosen = firstOf(layers, key) ?? fromEnvironment(key, input.environment);
    if (chosen !== undefined)
      typed.push({ name: key, value: [chosen.value].flat().join(','), source: chosen.source });
  }
  typed.push(...constraintDirective(input, layers));
  for (const key of ['exclude', 'nodelist'] as const) {
    const chosen = firstOf(layers, key);
    if (chosen !== undefined) typed.push({ name: key, value: String(chosen.value), source: chosen.source });
  }
  const exclusive = firstOf(layers, 'exclusive');
  if (exclusive?.value === true) typed.push({ name: 'exclusive', source: exclusive.source });
  if (settings.signal_s > 0)
    typed.push({
      name: 'signal',
      value: `B:USR1@${settings.signal_s}`,
      source: origin(input.locateSite, 'slurm.signal_s', 'slurm.signal_s', site.name),
    });
  typed.push({
    name: (request.requeue ?? isRequeued(site, request.tier)) ? 'requeue' : 'no-requeue',
    source: origin(input.locateSite, 'slurm.requeue', 'slurm.requeue', site.name),
  });
  if (settings.comment) typed.push({ name: 'comment', value: jobComment(request.launch_id), source: own });
  const removed = new Set(
    layers.flatMap((layer) => layer.settings.remove ?? []).map((name) => name.replace(/^--/, '')),
  );
  return {
    typed: typed.filter((directive) => !removed.has(directive.name)),
    // The weakest layer first: sbatch takes the last of equal options.
    extra: layers.toReversed().flatMap((layer) =>
      (layer.settings.extra ?? []).map((option) => ({
        name: /^--([a-z][a-z-]*)/.exec(option)?.[1] ?? option,
        value: option,
        source: layer.source('extra'),
      })),
    ),
  };
}

/** The comment by which a job is found again. */
export function jobComment(launch_id: string): string {
  return `hpcserve:${launch_id}`;
}

/** The launch a job belongs to, or undefined when the job is not ours. */
export function launchOfComment(comment: string | undefined): string | undefined {
  return /^hpcserve:(\S+)$/.exec(comment ?? '')?.[1];
}

/** Whether Slurm may put jobs of this tier back into the queue. */
export function isRequeued(site: SiteConfig, tier: 'stable' | 'scavenger'): boolean {
  const { requeue } = slurmSettings(site);
  return requeue === 'always' || (requeue === 'scavenger' && tier === 'scavenger');
}

function settingLayers(input: DirectiveInput): Layer[] {
  const { site, node_kind, overrides, locateSite, locateOverrides } = input;
  const layers: Layer[] = [];
  if (overrides !== undefined)
    layers.push({
      settings: overrides,
      source: (key) => origin(locateOverrides, `slurm.${key}`, `slurm.${key}`, 'model.yaml'),
    });
  if (node_kind !== undefined) {
    const index = site.node_kinds.findIndex((kind) => kind.name === node_kind.name);
    const label = `node_kinds[${node_kind.name}]`;
    if (node_kind.slurm !== undefined)
      layers.push({
        settings: node_kind.slurm,
        source: (key) =>
          origin(locateSite, `node_kinds.${index}.slurm.${key}`, `${label}.slurm.${key}`, site.name),
      });
    if (node_kind.partition !== undefined)
      layers.push({
        settings: { partition: node_kind.partition },
        source: (key) => origin(locateSite, `node_kinds.${index}.${key}`, `${label}.${key}`, site.name),
      });
  } else if (site.gateway.partition !== undefined) {
    layers.push({
      settings: { partition: site.gateway.partition },
      source: (key) => origin(locateSite, `gateway.${key}`, `gateway.${key}`, site.name),
    });
  }
  layers.push({
    settings: slurmSettings(site).defaults,
    source: (key) => origin(locateSite, `slurm.defaults.${key}`, `slurm.defaults.${key}`, site.name),
  });
  return layers;
}

/** "site.yaml:12:7 slurm.defaults.qos" where the position is known, else "slurm.defaults.qos of NAME". */
function origin(locate: Locate | undefined, keyPath: string, label: string, file: string): string {
  const position = locate?.(keyPath);
  return position === undefined ? `${label} of ${file}` : `${position} ${label}`;
}

type SingleKey = Exclude<keyof SlurmDefaults, 'extra' | 'remove'>;

function firstOf(
  layers: readonly Layer[],
  key: SingleKey,
): { value: string | number | boolean | string[]; source: string } | undefined {
  for (const layer of layers) {
    const value = layer.settings[key];
    if (value !== undefined) return { value, source: layer.source(key) };
  }
  return undefined;
}

/**
 * What sbatch itself would take from the environment; ours is cleaned of it so that nothing overrides the script
 * unseen.
 */
function fromEnvironment(
  key: 'partition' | 'account' | 'qos' | 'reservation',
  environment: DirectiveInput['environment'],
): { value: string; source: string } | undefined {
  const name = `SBATCH_${key.toUpperCase()}`;
  const value = environment?.[name];
  return value === undefined || value === '' ? undefined : { value, source: `$${name}` };
}

function gpuDirectives(input: DirectiveInput): Directive[] {
  const { site, node_kind, request } = input;
  if (request.gpus_per_node === 0 || node_kind === undefined) return [];
  const form: GpuRequest = node_kind.gpu_request ?? slurmSettings(site).gpu_request;
  const type = form.with_type && node_kind.gres_type !== undefined ? `${node_kind.gres_type}:` : '';
  const index = site.node_kinds.findIndex((kind) => kind.name === node_kind.name);
  const source = origin(
    input.locateSite,
    `node_kinds.${index}.gres_type`,
    `gres_type of node kind ${node_kind.name}`,
    site.name,
  );
  switch (form.form) {
    case 'gres':
      return [{ name: 'gres', value: `${form.gres_name}:${type}${request.gpus_per_node}`, source }];
    case 'gpus-per-node':
      return [{ name: 'gpus-per-node', value: `${type}${request.gpus_per_node}`, source }];
    case 'gpus':
      return [{ name: 'gpus', value: `${type}${request.gpus_per_node * request.nodes}`, source }];
    case 'none':
      return [];
  }
}

function timeDirectives(input: DirectiveInput, layers: readonly Layer[]): Directive[] {
  const { site, node_kind, request } = input;
  const index = site.node_kinds.findIndex((kind) => kind.name === node_kind?.name);
  const kindLimit =
    node_kind?.max_time === undefined
      ? undefined
      : {
          value: node_kind.max_time,
          source: origin(
            input.locateSite,
            `node_kinds.${index}.max_time`,
            `max_time of node kind ${node_kind.name}`,
            site.name,
          ),
        };
  const gatewayLimit =
    node_kind === undefined && site.gateway.time_limit !== undefined
      ? {
          value: site.gateway.time_limit,
          source: origin(input.locateSite, 'gateway.time_limit', 'gateway.time_limit', site.name),
        }
      : undefined;
  const chosen =
    request.time_limit_s !== undefined
      ? { value: formatSlurmDuration(request.time_limit_s), source: 'hpcserve' }
      : (gatewayLimit ?? firstOf(layers, 'time_limit') ?? kindLimit);
  if (chosen === undefined) return [];
  const seconds = parseSlurmDuration_s(String(chosen.value));
  const most_s = kindLimit === undefined ? undefined : parseSlurmDuration_s(String(kindLimit.value));
  if (seconds !== undefined && most_s !== undefined && seconds > most_s)
    throw new HpcserveError('E_SLURM_TIME_LIMIT', {
      what: `the job asks for ${formatSlurmDuration(seconds)}, but nodes of kind ${node_kind?.name} allow ${formatSlurmDuration(most_s)}`,
      because: [`time_limit was set by ${chosen.source}`, `the limit was set by ${kindLimit?.source}`],
    });
  const directives: Directive[] = [{ name: 'time', value: String(chosen.value), source: chosen.source }];
  if (request.time_min_s !== undefined)
    directives.push({ name: 'time-min', value: formatSlurmDuration(request.time_min_s), source: 'hpcserve' });
  return directives;
}

function constraintDirective(input: DirectiveInput, layers: readonly Layer[]): Directive[] {
  const features = input.node_kind?.features ?? [];
  const asked = firstOf(layers, 'constraint');
  const parts = [...features];
  const sources: string[] = [];
  if (features.length > 0) {
    const index = input.site.node_kinds.findIndex((kind) => kind.name === input.node_kind?.name);
    sources.push(
      origin(
        input.locateSite,
        `node_kinds.${index}.features`,
        `features of node kind ${input.node_kind?.name}`,
        input.site.name,
      ),
    );
  }
  if (asked !== undefined) {
    const text = String(asked.value);
    // "a|b" joined with "&" would mean something else; a chain of "&" may stay bare.
    parts.push(features.length === 0 || /^[^|()[\]]+$/.test(text) ? text : `(${text})`);
    sources.push(asked.source);
  }
  return parts.length === 0
    ? []
    : [{ name: 'constraint', value: parts.join('&'), source: sources.join(', ') }];
}

/** `--output` reads % as the start of a pattern; two of them are one. A backslash would switch patterns off. */
function logPattern({ array_tasks, working_folder, log_file }: JobRequest): string {
  if (array_tasks === undefined) return literalPattern(log_file);
  return [literalPattern(working_folder), arrayTaskFolder('%a'), literalPattern(log_file)].join('/');
}

function literalPattern(path: string): string {
  if (path.includes('\\'))
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `the log file ${JSON.stringify(path)} has a backslash in its path, which sbatch cannot take`,
      try: 'choose a state_dir without backslashes',
    });
  return path.replaceAll('%', '%%');
}
