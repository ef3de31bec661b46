/** The script of a job: what it says, as data, and its text, from the templates in sbatch-templates/. */
import { join } from 'node:path';
import { Eta } from 'eta';
import { packageRoot } from '../host/package-root.ts';
import { cacheEnvironment } from '../spec/cache-environment.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { ContainerConfig, RuntimeConfig } from '../spec/site-runtime.ts';
import type { Directive } from '../spec/slurm-types.ts';
import { arrayTaskFolder } from '../spec/state-layout.ts';
import { containerLaunch } from './container.ts';
import { buildDirectives, type DirectiveInput, isRequeued, type JobDirectives } from './directives.ts';
import { commentText, directiveLine, shellQuote, verbatimDirectiveLine } from './quote.ts';

export type JobRole = 'agent' | 'gateway';

export interface JobScriptInput extends DirectiveInput {
  role: JobRole;
  deployment: string;
  /** Version of hpcserve that writes the script. */
  version: string;
  /** What srun starts, once on each node; tasks of an array add the path of their launch to it. */
  command: readonly string[];
  /** Name of the file in a task's folder whose path is the last word of the command. */
  task_file?: string;
  /** Environment of this job beside the site's; never secrets. */
  environment_of_job?: Readonly<Record<string, string>>;
  /** Folders and files that must be visible inside a container, besides that of caches. */
  visible_folders?: readonly string[];
  /** Folder for caches, expanded; absent: caches stay where their programs put them. */
  cache_dir?: string;
}

/** Everything a template needs. Values are raw: the template's quoting makes them safe. */
export interface JobScript {
  role: JobRole;
  version: string;
  deployment: string;
  site: string;
  node_kind: string | undefined;
  launch_id: string;
  directives: JobDirectives;
  /** The name and value of each exported variable, in order. */
  environment: [name: string, value: string][];
  /** Folders made before anything starts. */
  folders: string[];
  modules: string[];
  module_purge: boolean;
  /** Files that may define `module`, tried in order. */
  module_init: string[];
  prologue: string[];
  python: RuntimeConfig['python'];
  /** The whole srun command: options, container, command. */
  srun: string[];
  /**
   * Of a job array: the beginning of the paths of its tasks' folders, and the file there that ends the srun command.
   */
  array?: { folder_prefix: string; file: string };
  /** Slurm may put the job back; the script sees to it when the job is preempted. */
  requeue: boolean;
  /** As often at most. */
  requeues_max: number;
}

/** Usual places of the file that defines `module` (Environment Modules, Lmod), for nodes where no login shell did. */
const moduleInitFiles = [
  '/etc/profile.d/modules.sh',
  '/etc/profile.d/z00_lmod.sh',
  '/etc/profile.d/lmod.sh',
  '/usr/share/lmod/lmod/init/bash',
  '/usr/share/modules/init/bash',
  '/opt/cray/pe/lmod/lmod/init/bash',
];

/** Names that end like this hold secrets, and scripts are readable by others (`scontrol write batch_script`). */
const secretName =
  /(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$/i;

/**
 * @throws E_SLURM_SECRET for a variable whose name says that it is a secret.
 * @throws E_SLURM_SCRIPT, E_SLURM_TIME_LIMIT, E_CONFIG_CONFLICT as `buildDirectives` and `containerLaunch`.
 */
export function buildJobScript(input: JobScriptInput): JobScript {
  const { site, request } = input;
  const { runtime } = site;
  const environment = jobEnvironment(input);
  // The gateway computes nothing: it needs neither the engines' container nor their Python.
  const forEngines = input.role === 'agent';
  const container = containerLaunch({
    container: forEngines ? runtime.container : noContainer,
    folders: [
      ...(input.visible_folders ?? []),
      // Engines are told to keep their caches there.
      ...(input.cache_dir === undefined ? [] : [input.cache_dir]),
    ],
    environment_names: environment.map(([name]) => name),
  });
  const srun = [
    'srun',
    `--nodes=${request.nodes}`,
    `--ntasks=${request.nodes}`,
    '--ntasks-per-node=1',
    // From 22.05 on a step no longer takes this from the job.
    ...(request.cpus_per_node === undefined ? [] : [`--cpus-per-task=${request.cpus_per_node}`]),
    '--mpi=none',
    // Whatever the site's defaults are: a replica on several nodes ends when an agent of it is killed.
    `--kill-on-bad-exit=${request.nodes > 1 ? 1 : 0}`,
    '--wait=0',
    ...runtime.srun_args,
    ...container.srun_args,
    ...container.prefix,
    ...input.command,
  ];
  return {
    role: input.role,
    version: input.version,
    deployment: input.deployment,
    site: site.name,
    node_kind: input.node_kind?.name,
    launch_id: request.launch_id,
    directives: buildDirectives(input),
    environment,
    folders: input.cache_dir === undefined ? [] : [input.cache_dir],
    modules: [...runtime.modules],
    module_purge: runtime.module_purge,
    module_init: [...(runtime.module_init === undefined ? [] : [runtime.module_init]), ...moduleInitFiles],
    prologue: runtime.prologue.flatMap((line) => line.split('\n')),
    python: forEngines ? runtime.python : undefined,
    srun,
    array:
      request.array_tasks === undefined || input.task_file === undefined
        ? undefined
        : { folder_prefix: join(request.working_folder, arrayTaskFolder('')), file: input.task_file },
    requeue: request.requeue ?? isRequeued(site, request.tier),
    requeues_max: site.scavenging.requeues_max,
  };
}

const noContainer: ContainerConfig = { runtime: 'none', binds: [], flags: [] };

function jobEnvironment(input: JobScriptInput): [string, string][] {
  const merged = new Map<string, string>();
  if (input.cache_dir !== undefined)
    for (const [name, value] of Object.entries(cacheEnvironment(input.cache_dir))) merged.set(name, value);
  for (const [name, value] of Object.entries(input.site.runtime.environment)) merged.set(name, value);
  for (const [name, value] of Object.entries(input.environment_of_job ?? {})) merged.set(name, value);
  for (const name of merged.keys()) checkVariable(name);
  return [...merged];
}

function checkVariable(name: string): void {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `${JSON.stringify(name)} is not a name for an environment variable`,
    });
  if (secretName.test(name))
    throw new HpcserveError('E_SLURM_SECRET', {
      what: `the variable ${name} looks like a secret and would stand in the job script`,
      details: { name },
    });
}

/**
 * `<%= x %>` prints a shell word that stands for exactly x; there is no HTML here. `<%~ x %>` prints x as it
 * is and is used only for names that were checked and for prologue lines, which are bash by definition.
 */
const templates = new Eta({
  views: join(packageRoot, 'sbatch-templates'),
  autoEscape: true,
  escapeFunction: (value) => shellQuote(String(value)),
  autoTrim: false,
  cache: true,
});

/**
 * The whole text of the script; the same input gives the same bytes.
 * @throws E_SLURM_SCRIPT for values that no script can hold.
 */
export function renderJobScript(script: JobScript): string {
  return templates.render(`./${script.role}.sbatch.eta`, {
    ...script,
    sbatch_lines: [
      ...script.directives.typed.map(({ name, value }) => directiveLine(name, value)),
      ...script.directives.extra.map((directive) => verbatimDirectiveLine(directive.value ?? '')),
    ],
    comment: commentText,
  });
}

/** All options of a script with their origins, as `SlurmClient.submit` wants them. */
export function directivesOf(script: JobScript): Directive[] {
  // A later option overrides an earlier one of the same name, so the later origin explains a refusal.
  const extra = new Set(script.directives.extra.map((directive) => directive.name));
  return [
    ...script.directives.typed.filter((directive) => !extra.has(directive.name)),
    ...script.directives.extra.map((directive) => ({
      name: directive.name,
      value: directive.value?.replace(/^--[a-z-]+=?/, '') ?? '',
      source: directive.source,
    })),
  ];
}
