import { dirname, join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { processesWithArgument } from '../../host/process-identity.ts';
import { pathsOfUnit } from '../../host/unit-paths.ts';
import { version } from '../../host/version.ts';
import { holdsTask, parseJobNumber, taskId, tasksIn, tellsOf } from '../../slurm/array-tasks.ts';
import type { SlurmClient } from '../../slurm/client.ts';
import { type JobRequest, launchOfComment } from '../../slurm/directives.ts';
import {
  buildJobScript,
  directivesOf,
  type JobScript,
  type JobScriptInput,
  renderJobScript,
} from '../../slurm/job-script.ts';
import { checkPermissions, type Permissions, withKnownAccounts } from '../../slurm/permissions.ts';
import { explainReason } from '../../slurm/reasons.ts';
import { atLeast } from '../../slurm/version.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { holderNodeOptions } from '../../spec/gateway-node-options.ts';
import type { SlurmOverrides } from '../../spec/model-yaml.ts';
import { isOnIdleNodes, type PlannedLaunch } from '../../spec/plan.ts';
import { slurmSettings } from '../../spec/site.ts';
import { expandSite, expandSitePath, siteCacheDir } from '../../spec/site-paths.ts';
import type { Directive, JobInfo } from '../../spec/slurm-types.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { JobRun } from '../state/job-runs.ts';
import type { ArrayTask, JobSnapshot } from '../state/job-snapshot.ts';
import type { LoadedSite } from '../state/site-files.ts';
import { describeAgentExit } from './agent-end.ts';
import { arrayGroups } from './array-groups.ts';
import type {
  JobArrays,
  JobRunner,
  PreparedArray,
  PreparedLaunch,
  RenderedScript,
  Submitted,
} from './job-runner.ts';
import type { SubmissionPace } from './submission-pace.ts';

export interface SlurmRunnerOptions {
  site: LoadedSite;
  client: SlurmClient;
  environment: Readonly<Record<string, string | undefined>>;
  pace: Pick<SubmissionPace, 'room' | 'take'>;
  /** Default: the clock of this host. */
  now_ms?: () => number;
  /** `slurm:` of model.yaml with flags and environment merged in. */
  overrides?: SlurmOverrides;
  /** Where a key of `overrides` was set. */
  overrideSource?: (key: string) => string | undefined;
}

/** The runner of Slurm sites: renders, submits and follows batch jobs through the one Slurm client. */
export class SlurmRunner implements JobRunner {
  readonly kind = 'slurm';
  readonly poll_interval_ms: number;
  readonly settle_ms: number;
  readonly #options: SlurmRunnerOptions;
  readonly #now_ms: () => number;
  #permissions: { asked_at_ms: number; answer: Promise<Permissions> } | undefined;
  #tasks_max: Promise<number> | undefined;
  #graces_s: Promise<{ kill_wait_s: number; by_partition: ReadonlyMap<string, number> }> | undefined;

  constructor(options: SlurmRunnerOptions) {
    this.#options = options;
    this.#now_ms = options.now_ms ?? Date.now;
    const { poll_interval_s, command_timeout_s } = slurmSettings(options.site.site);
    this.poll_interval_ms = poll_interval_s * 1000;
    this.settle_ms = command_timeout_s * 1000 + visible_ms;
  }

  render(prepared: PreparedLaunch): RenderedScript {
    return rendered(this.#script(prepared));
  }

  /** How many more jobs the site's limits allow in the queue, and how many submissions at this moment. */
  async room(): Promise<{ jobs: number; submissions: number }> {
    const { pace, site } = this.#options;
    return {
      jobs: Math.max(0, site.site.limits.max_jobs - (await this.#queued())),
      submissions: pace.room(),
    };
  }

  async #queued(): Promise<number> {
    const jobs = await this.#options.client.myJobs();
    const ours = jobs.filter((job) => job.phase !== 'ended' && isOurs(job));
    return ours.reduce((sum, job) => sum + tasksIn(job), 0);
  }

  async admit(count: number, jobs = count): Promise<number> {
    const { pace, site } = this.#options;
    if (pace.room() === 0) return 0;
    const { max_jobs } = site.site.limits;
    const queued = await this.#queued();
    if (queued + jobs > max_jobs)
      throw new HpcserveError('E_JOBS_LIMIT', {
        what: `${jobs} more job(s) would be ${queued + jobs}, and ${site.site.name} allows ${max_jobs}`,
        because: [
          `${queued} job(s) of hpcserve are in the queue or run`,
          `limits.max_jobs: ${max_jobs} (${site.provenance('limits.max_jobs') ?? `the default; ${site.path} does not set it`})`,
        ],
        details: { queued, wanted: jobs, max_jobs },
      });
    return pace.take(count);
  }

  submit(prepared: PreparedLaunch, script: RenderedScript): Promise<Submitted> {
    return this.#submit(script, prepared.launch_folder);
  }

  async #submit({ directives }: RenderedScript, folder: string): Promise<Submitted> {
    await this.#checkPermissions(directives);
    const path = join(folder, launchFiles.script);
    const { job_id, warnings } = await this.#withAccounts(directives, (client) =>
      client.submit({ path }, directives),
    );
    const partition = directives.find(({ name }) => name === 'partition')?.value;
    const where = partition === undefined ? 'the default partition' : `partition ${partition}`;
    return { job_id, where, said: warnings };
  }

  readonly arrays: JobArrays = {
    groups: async (planned, offline = false) => {
      const { site, overrides } = this.#options;
      if ((overrides?.array ?? slurmSettings(site.site).array) === 'never') return [];
      const alike = arrayGroups(planned, Number.POSITIVE_INFINITY);
      if (alike.length === 0 || offline) return alike;
      const tasks_max = await this.#tasksMax();
      if (tasks_max < 2 || (await this.#isPinnedToFirst(planned))) return [];
      return arrayGroups(planned, tasks_max);
    },
    render: (array) => rendered(this.#arrayScript(array)),
    submit: async (array, script) => {
      const { job_id, ...answer } = await this.#submit(script, array.folder);
      return { job_ids: array.launches.map((_, task) => taskId(job_id, task)), ...answer };
    },
  };

  /**
   * Slurm 20.11 looks for the tasks of an array that get nodes whole only among nodes like the first one's; 22.05 does
   * not. So each of them is a job of its own there.
   */
  async #isPinnedToFirst(planned: readonly PlannedLaunch[]): Promise<boolean> {
    const { client, site } = this.#options;
    if (atLeast(await client.version(), 22, 5)) return false;
    const { defaults } = slurmSettings(site.site);
    const asked = planned.some(({ node_kind }) => {
      const kind = site.site.node_kinds.find(({ name }) => name === node_kind);
      return kind?.slurm?.exclusive ?? defaults.exclusive;
    });
    if (asked) return true;
    const whole = (await client.partitions()).filter(({ exclusive }) => exclusive);
    return planned.some(({ partitions }) =>
      whole.some(({ name, is_default }) => (partitions.length > 0 ? partitions.includes(name) : is_default)),
    );
  }

  #tasksMax(): Promise<number> {
    this.#tasks_max ??= this.#options.client.config().then((config) => config.max_array_size);
    this.#tasks_max.catch(() => {
      this.#tasks_max = undefined;
    });
    return this.#tasks_max;
  }

  /** When Slurm would start such a job, by `sbatch --test-only`. @throws as `submit` */
  async estimateStart(prepared: PreparedLaunch): Promise<{ start_time_ms: number; node_list: string }> {
    const { text, directives } = this.render(prepared);
    await this.#checkPermissions(directives);
    return this.#withAccounts(directives, (client) => client.estimateStart({ text }, directives));
  }

  /** Where Slurm misses an account, the error says which there are. */
  async #withAccounts<T>(
    directives: readonly Directive[],
    ask: (client: SlurmClient) => Promise<T>,
  ): Promise<T> {
    const { client } = this.#options;
    try {
      return await ask(client);
    } catch (thrown) {
      const error = HpcserveError.from(thrown);
      if (error.code !== 'E_SLURM_ACCOUNT') throw error;
      throw withKnownAccounts(error, directives, await client.permissions());
    }
  }

  /**
   * Names that Slurm does not know for this user are refused here, with those that it does. What is to be refused is
   * asked again: an operator may have restored it meanwhile.
   * @throws as `checkPermissions`
   */
  async #checkPermissions(directives: readonly Directive[]): Promise<void> {
    if (!directives.some(({ name }) => ['account', 'qos', 'reservation'].includes(name))) return;
    const known = this.#knownPermissions();
    try {
      checkPermissions(directives, await known.answer);
    } catch (refused) {
      if (this.#now_ms() - known.asked_at_ms < permissionsAgain_ms) throw refused;
      this.#permissions = undefined;
      checkPermissions(directives, await this.#knownPermissions().answer);
    }
  }

  #knownPermissions(): { asked_at_ms: number; answer: Promise<Permissions> } {
    if (this.#permissions) return this.#permissions;
    const asked = { asked_at_ms: this.#now_ms(), answer: this.#options.client.permissions() };
    this.#permissions = asked;
    asked.answer.catch(() => {
      if (this.#permissions === asked) this.#permissions = undefined;
    });
    return asked;
  }

  async find(launchId: string, array?: ArrayTask): Promise<string[] | undefined> {
    const id = array?.array_id ?? launchId;
    // The sbatch of a command that was killed goes on by itself; as long as it runs here nobody can tell.
    const scripts = processesWithArgument((argument) => argument.endsWith(`/${id}/${launchFiles.script}`));
    const submissions = new Set(processesWithArgument((argument) => argument === '--parsable'));
    if (scripts.some((pid) => submissions.has(pid))) return undefined;
    const jobs = await this.#options.client.myJobs();
    // By name alone: no other launch has this id, and the clocks of two hosts say nothing.
    const ours = jobs.filter(
      (job) => isOfLaunch(job, id) && (array === undefined || holdsTask(job, array.task)),
    );
    // Running ones first: should there be two, the reconciler keeps the first.
    const rank = (job: JobInfo): number =>
      ['running', 'waiting', 'unknown', 'ending', 'ended'].indexOf(job.phase);
    const found = ours
      .sort((a, b) => rank(a) - rank(b))
      .map(({ base_job_id }) => (array === undefined ? base_job_id : taskId(base_job_id, array.task)));
    return [...new Set(found)];
  }

  async poll(jobs: readonly { job_id: string }[]): Promise<Map<string, JobSnapshot>> {
    const infos = await this.#options.client.jobs(jobs.map((job) => job.job_id));
    const byBase = new Map<string, JobInfo[]>();
    for (const info of infos) {
      const others = byBase.get(info.base_job_id);
      if (others) others.push(info);
      else byBase.set(info.base_job_id, [info]);
    }
    return new Map(
      jobs.flatMap(({ job_id }): [string, JobSnapshot][] => {
        const { base } = parseJobNumber(job_id) ?? { base: job_id };
        const info = byBase.get(base)?.find((each) => tellsOf(each, job_id));
        if (info === undefined) return [[job_id, forgotten(job_id)]];
        const { phase } = info;
        return phase === 'unknown' ? [] : [[job_id, snapshotOf({ ...info, phase }, job_id)]];
      }),
    );
  }

  /** By slurmdbd, which tells those runs apart that one number had; none where it is not there. */
  async accountedRuns(job_ids: readonly string[]): Promise<Map<string, JobRun[]>> {
    const infos = await this.#options.client.accounted(job_ids);
    const runsOf = (job_id: string): JobRun[] =>
      infos
        .filter((info) => tellsOf(info, job_id))
        .flatMap(({ state, start_time_ms: start_ms, end_time_ms: end_ms, account, node_list }) => {
          // A record is made before it is told of its end.
          if (start_ms === undefined || end_ms === undefined) return [];
          return [{ state, start_ms, end_ms, account, nodes: node_list || undefined }];
        });
    return new Map(job_ids.map((job_id) => [job_id, runsOf(job_id)]));
  }

  /**
   * A preempted job has the partition's GraceTime, a cancelled or timed-out one KillWait: two thirds of the shorter
   * one, the rest is for stopping engines and saying LEFT.
   */
  async drainTime_s({ tier, partitions }: PlannedLaunch): Promise<number> {
    const { client } = this.#options;
    this.#graces_s ??= Promise.all([client.config(), client.partitions()]).then(([config, all]) => ({
      kill_wait_s: config.kill_wait_s,
      by_partition: new Map(all.map(({ name, grace_time_s }) => [name, grace_time_s])),
    }));
    this.#graces_s.catch(() => {
      this.#graces_s = undefined;
    });
    const { kill_wait_s, by_partition } = await this.#graces_s;
    const graces_s = tier === 'stable' ? [] : partitions.map((name) => by_partition.get(name) ?? 0);
    // Without a grace time Slurm goes on to the kill, which has its own wait.
    const given_s = Math.min(kill_wait_s, ...graces_s.filter((grace_s) => grace_s > 0));
    return Math.max(drain_s_min, Math.min(drain_s_max, (given_s * 2) / 3));
  }

  /** Slurm itself sends SIGKILL after its KillWait; asking again is all that force can add. */
  async cancel(job: { job_id: string }): Promise<void> {
    await this.#options.client.cancel([job.job_id]);
  }

  #script(prepared: PreparedLaunch): JobScript {
    const { launch, launch_folder, launch_file } = prepared;
    return buildJobScript({
      ...this.#common([prepared]),
      command: [...this.#agent(), launch_file],
      request: {
        ...this.#request(prepared),
        job_name: `${launch.deployment}${nameEnd(launch.launch_id)}`,
        log_file: join(launch_folder, launchFiles.log),
        working_folder: launch_folder,
        launch_id: launch.launch_id,
      },
    });
  }

  #arrayScript({ array_id, folder, launches }: PreparedArray): JobScript {
    const first = launches[0]!;
    return buildJobScript({
      ...this.#common(launches),
      command: this.#agent(),
      task_file: launchFiles.launch,
      request: {
        ...this.#request(first),
        job_name: `${first.launch.deployment}${nameEnd(array_id)}`,
        log_file: launchFiles.log,
        working_folder: folder,
        launch_id: array_id,
        array_tasks: launches.length,
      },
    });
  }

  /** The agent's command without the path of its launch. */
  #agent(): string[] {
    const { site, environment } = this.#options;
    return [...programOf(site, environment, 'agent'), '--launch'];
  }

  /** What a job asks for whatever its name. */
  #request({ launch, planned }: PreparedLaunch): Omit<JobRequest, OwnOfJob> {
    return {
      nodes: launch.node_count,
      gpus_per_node: planned.devices_per_node.kind === 'cpu' ? 0 : planned.devices_per_node.count,
      cpus_per_node: planned.cpus_per_node,
      memory_mb_per_node: Math.ceil(planned.memory_bytes_per_node / 1024 ** 2),
      tier: launch.tier,
      time_min_s: planned.scavenged?.time_min_s,
      time_limit_s: isOnIdleNodes(planned) ? planned.time_limit_s : undefined,
    };
  }

  /** What the scripts of a launch and of an array of equal ones have in common. */
  #common(launches: readonly PreparedLaunch[]): Omit<JobScriptInput, 'command' | 'request'> {
    const { site: loaded, environment, overrides, overrideSource } = this.#options;
    const { launch, planned } = launches[0]!;
    const node_kind = loaded.site.node_kinds.find((kind) => kind.name === launch.node_kind);
    return {
      ...commonScriptInput(loaded, environment),
      role: 'agent',
      deployment: launch.deployment,
      node_kind,
      visible_folders: [
        // Of an array, the folder that holds those of its launches and its own.
        launches.length === 1 ? launch.launch_folder : dirname(launch.launch_folder),
        launch.mesh_folder,
        installFolder(loaded, environment),
        ...pathsOfLaunches(launches),
      ],
      overrides: overrides && isOnIdleNodes(planned) ? whereverItIs(overrides) : overrides,
      locateOverrides: overrideSource,
    };
  }
}

/** What node agents and engines read and write beside the folders of their launch, the mesh and hpcserve. */
function pathsOfLaunches(launches: readonly PreparedLaunch[]): string[] {
  const { manifest_folder, native_library_dir, part } = launches[0]!.launch;
  const units = launches.flatMap(({ launch }) => launch.units);
  return [
    ...new Set([
      ...(manifest_folder === undefined ? [] : [manifest_folder]),
      ...(part?.folder === undefined ? [] : [part.folder]),
      ...(native_library_dir === undefined ? [] : [native_library_dir]),
      ...units.flatMap((unit) => [...pathsOfUnit(unit), ...unit.model.environment_files]),
    ]),
  ];
}

function rendered(script: JobScript): RenderedScript {
  return { text: renderJobScript(script), directives: directivesOf(script) };
}

/** What tells one job from its like. */
type OwnOfJob = 'job_name' | 'log_file' | 'working_folder' | 'launch_id';

/** What model.yaml says of where its jobs go is about the others; who pays and what is left out goes for all. */
function whereverItIs({ account, exclude, extra, remove }: SlurmOverrides): SlurmOverrides {
  return {
    extra,
    remove,
    ...(account === undefined ? {} : { account }),
    ...(exclude === undefined ? {} : { exclude }),
  };
}

/** What scripts of all roles have in common. */
export function commonScriptInput(
  loaded: LoadedSite,
  environment: Readonly<Record<string, string | undefined>>,
): Pick<JobScriptInput, 'site' | 'version' | 'environment' | 'locateSite' | 'cache_dir'> {
  // Paths mean what they mean to the person who deploys: no shell reads them in a script, or on the way to a container.
  const site = expandSite(loaded.site, environment);
  const cache = siteCacheDir(site, environment);
  return {
    site,
    version,
    environment,
    locateSite: loaded.provenance,
    cache_dir: cache,
  };
}

/** The command of one of our processes as compute nodes start it. */
export function programOf(
  { site }: LoadedSite,
  environment: Readonly<Record<string, string | undefined>>,
  room: 'agent' | 'gateway/holder' | 'control/keeper',
): string[] {
  const node =
    site.runtime.node_path === undefined
      ? process.execPath
      : expandSitePath(site.runtime.node_path, environment);
  const options = room === 'gateway/holder' ? holderNodeOptions : [];
  return [node, ...options, join(installFolder({ site }, environment), 'dist', room, 'main.js')];
}

function installFolder(
  { site }: Pick<LoadedSite, 'site'>,
  environment: Readonly<Record<string, string | undefined>>,
): string {
  return site.runtime.install_dir === undefined
    ? packageRoot
    : expandSitePath(site.runtime.install_dir, environment);
}

/**
 * Bounds of the time to drain, s. Lower: fewer answers end where they run; higher: nodes that others wait for stay
 * taken longer.
 */
const drain_s_min = 1;
const drain_s_max = 20;
/**
 * What a person may name in a script is asked for again after so long, where it would be refused, ms. Lower: what was
 * restored is used sooner; higher: fewer questions to slurmdbd while it is missing.
 */
const permissionsAgain_ms = 60_000;
/** How long a job that sbatch got through may take to show in squeue, ms. */
const visible_ms = 15_000;
/**
 * Jobs of this tool, also where a site keeps comments for itself. Eight digits from 19 or 20 on are a day in the name
 * of another job; one in two thousand of ours ends so.
 */
function isOurs(job: JobInfo): boolean {
  return job.comment?.startsWith('hpcserve:') === true || /-(?!(?:19|20)\d{6}$)[0-9a-f]{8}$/.test(job.name);
}

/** The comment has the whole id, the name a part of it. */
function isOfLaunch({ comment, name }: JobInfo, id: string): boolean {
  const launch = launchOfComment(comment);
  return launch === undefined ? name.endsWith(nameEnd(id)) : launch === id;
}

/** Job names end so, which finds a job where a site keeps comments for itself. */
function nameEnd(launchId: string): string {
  return `-${launchId.slice(0, 8)}`;
}

const phases = { waiting: 'pending', running: 'running', ending: 'completing', ended: 'ended' } as const;

type KnownJob = JobInfo & { phase: keyof typeof phases };

function snapshotOf(job: KnownJob, job_id: string): JobSnapshot {
  const { state, start_time_ms, time_limit_s, restart_count, account } = job;
  const phase = phases[job.phase];
  const common = { job_id, phase, state, nodes: job.node_list || undefined, account, restart_count };
  switch (phase) {
    case 'pending':
      return {
        ...common,
        pending: whyItWaits(job),
        estimated_start_ms: job.start_is_estimate ? start_time_ms : undefined,
      };
    case 'running':
      return {
        ...common,
        job_number: job.array_task === undefined ? undefined : job.job_id,
        start_time_ms,
        end_time_limit_ms: endOfLimit(start_time_ms, time_limit_s),
      };
    case 'completing':
      return { ...common, start_time_ms, ended_at_ms: job.end_time_ms };
    case 'ended':
      return { ...common, start_time_ms, ended_at_ms: job.end_time_ms, ...endOf(job) };
  }
}

/**
 * Undefined also where Slurm says UNLIMITED: JSON has no Infinity, and nothing is renewed for an end that never comes.
 */
function endOfLimit(start_time_ms = Number.NaN, time_limit_s = Number.NaN): number | undefined {
  const end_ms = start_time_ms + time_limit_s * 1000;
  return Number.isFinite(end_ms) ? end_ms : undefined;
}

function whyItWaits({ reason }: JobInfo): JobSnapshot['pending'] {
  if (reason === undefined) return { reason: 'None', explanation: 'Slurm has not looked at it yet' };
  const explained = explainReason(reason);
  const explanation = [explained.meaning, explained.advice].filter(Boolean).join('; ');
  return { reason: explained.reason, explanation };
}

/** Slurm's end of a job in words. */
function endOf(job: JobInfo): Pick<JobSnapshot, 'exit_code' | 'signal' | 'reason'> {
  const explanations: Partial<Record<JobInfo['state'], string>> = {
    CANCELLED: 'it was cancelled (scancel, or an operator)',
    TIMEOUT: 'it reached its time limit',
    PREEMPTED: 'a job of higher priority took its nodes',
    NODE_FAIL: 'a node of it failed',
    OUT_OF_MEMORY: 'it used more memory than it asked for',
    BOOT_FAIL: 'its node did not boot',
    DEADLINE: 'it could not end before its deadline',
  };
  const code =
    job.state === 'FAILED' && job.exit_code !== undefined ? describeAgentExit(job.exit_code) : undefined;
  const reason =
    explanations[job.state] ?? code ?? (job.reason && job.reason !== 'None' ? job.reason : undefined);
  return { exit_code: job.exit_code, signal: job.exit_signal, reason };
}

function forgotten(job_id: string): JobSnapshot {
  return {
    job_id,
    phase: 'unknown',
    state: 'UNKNOWN',
    reason: 'neither the queue, nor the controller, nor accounting knows the job any more',
  };
}
