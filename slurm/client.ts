/** The one way to talk to Slurm. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { Directive, JobInfo } from '../spec/slurm-types.ts';
import { parseJobNumber, tellsOf } from './array-tasks.ts';
import {
  type ControllerConfig,
  type NodeGroup,
  type Partition,
  parseControllerConfig,
  parsePartitions,
  parseSinfo,
  sinfoFormat,
} from './cluster-facts.ts';
import { type CommandResult, type CommandRunner, commandMissing } from './command-runner.ts';
import {
  ownersFormat,
  parseOwners,
  parseSacct,
  parseScontrolJob,
  parseSqueue,
  sacctFormat,
  squeueFormat,
} from './job-queue.ts';
import {
  type Association,
  associationsArgv,
  type ClusterName,
  clustersArgv,
  enforcedBy,
  type Permissions,
  parseAssociations,
  parseClusters,
} from './permissions.ts';
import {
  type ExpectedStart,
  parseExpectedStarts,
  parseReservations,
  type SlurmReservation,
  startsFormat,
} from './promised-nodes.ts';
import { refusalError, refusalLines } from './refusals.ts';
import { parseUtcTime_ms, sacctDelimiter, utcPrefix } from './text-format.ts';
import { atLeast, oldestSlurm, parseSlurmVersion, type SlurmVersion } from './version.ts';

/** A script to submit: a file that both this client and sbatch can read, or its text. */
export type Script = { path: string } | { text: string };

export interface SubmittedJob {
  job_id: string;
  /** Named by Slurm when it has several clusters. */
  cluster?: string;
  /** What sbatch printed besides; never a failure. */
  warnings: string[];
}

/** When and where Slurm would start a job, as an estimate of this moment. */
export interface StartEstimate {
  start_time_ms: number;
  processors: number;
  node_list: string;
  partition?: string;
}

export interface SlurmClient {
  /** Why nothing can be known of nodes' GPUs and partitions' limits this way; the site config then has the word. */
  readonly unknown_resources?: string;
  /** Asked once, then remembered. @throws E_SLURM_COMMAND_MISSING, E_SLURM_ANSWER */
  version(): Promise<SlurmVersion>;
  /** The controller's settings. @throws E_SLURM_UNREACHABLE */
  config(): Promise<ControllerConfig>;
  partitions(): Promise<Partition[]>;
  nodeGroups(): Promise<NodeGroup[]>;
  /**
   * Submits a job. `directives` tell where each option comes from, so that a refusal can say so.
   * @throws E_SLURM_… by kind of refusal. After E_SLURM_UNREACHABLE with `details.may_have_been_submitted`
   * look for the job by its comment before submitting again.
   */
  submit(script: Script, directives: readonly Directive[]): Promise<SubmittedJob>;
  /** `sbatch --test-only`: what `submit` would answer, without submitting. @throws as `submit` */
  estimateStart(script: Script, directives: readonly Directive[]): Promise<StartEstimate>;
  /**
   * The jobs with these numbers (as sbatch returned them, or `123_4` for one task of an array), in one squeue; what the
   * queue no longer has comes from sacct, or from the controller's memory. Arrays and heterogeneous jobs give several
   * entries, and tasks that wait share one: `tellsOf` says of which job an entry tells.
   * Numbers nobody knows are missing in the answer.
   */
  jobs(job_ids: readonly string[]): Promise<JobInfo[]>;
  /**
   * Every run of ended and running jobs that slurmdbd has, also of those that went back into the queue; none where
   * there is no slurmdbd to be asked. It hears of an end a moment after the controller.
   */
  accounted(job_ids: readonly string[]): Promise<JobInfo[]>;
  /** Pending jobs of all users for which Slurm expects a start and nodes: `squeue --start`. */
  expectedStarts(): Promise<ExpectedStart[]>;
  /** Reservations that are not over. */
  reservations(): Promise<SlurmReservation[]>;
  /** What this user may name in a script. Parts that cannot be asked are absent. @throws as `config` */
  permissions(): Promise<Permissions>;
  /** Clusters that slurmdbd knows; undefined where it cannot be asked. */
  clusters(): Promise<ClusterName[] | undefined>;
  /** Every job of this user the controller knows, ended ones too as long as it remembers them. */
  myJobs(): Promise<JobInfo[]>;
  /**
   * Ends jobs or single tasks of arrays, or sends a signal; jobs that are already gone are no error.
   * @throws E_SLURM_NOT_ALLOWED
   */
  cancel(job_ids: readonly string[], options?: CancelOptions): Promise<void>;
}

export interface CancelOptions {
  /** Send this signal instead of ending the job: `USR1`, `TERM`. */
  signal?: string;
  /** Send it to the batch script alone. */
  batch?: boolean;
}

/** By name; by uid where the machine that asks has no entry for it, as a container without its users. */
type UserThere = { name: string; uid?: never } | { uid: string; name?: never };

export interface SlurmCommandClientOptions {
  /** Longest time a command may take. Default: 60 s; Slurm's own message timeout is 10 s, with retries. */
  command_timeout_ms?: number;
  /** Cluster that all commands are sent to, as -M takes it. Default: the one of slurm.conf. */
  cluster?: string;
  /** Told once of each line of an answer that cannot be read and is left out. */
  onUnreadable?: (what: string) => void;
}

/** Talks to Slurm by its commands, wherever `runner` runs them. */
export class SlurmCommandClient implements SlurmClient {
  readonly #runner: CommandRunner;
  readonly #timeout_ms: number;
  readonly #cluster: string | undefined;
  readonly #onUnreadable: (what: string) => void;
  readonly #unreadable = new Set<string>();
  #version: Promise<SlurmVersion> | undefined;
  #hasAccounting: Promise<boolean> | undefined;
  #user: Promise<UserThere> | undefined;

  constructor(runner: CommandRunner, options: SlurmCommandClientOptions = {}) {
    this.#runner = runner;
    this.#timeout_ms = options.command_timeout_ms ?? 60_000;
    this.#cluster = options.cluster;
    this.#onUnreadable = options.onUnreadable ?? (() => {});
  }

  version(): Promise<SlurmVersion> {
    this.#version ??= this.#remember(
      this.#ask(['sinfo', '--version']).then((output) => parseSlurmVersion(output)),
      () => {
        this.#version = undefined;
      },
    );
    return this.#version;
  }

  async config(): Promise<ControllerConfig> {
    return parseControllerConfig(await this.#ask([...utcPrefix, 'scontrol', 'show', 'config']));
  }

  async partitions(): Promise<Partition[]> {
    return parsePartitions(await this.#ask(['scontrol', '--all', '--oneliner', 'show', 'partition']));
  }

  async nodeGroups(): Promise<NodeGroup[]> {
    const listed = await this.#ask(['sinfo', '--noheader', '--exact', `--Format=${sinfoFormat}`]);
    return parseSinfo(listed, ({ partition, node_list }) => {
      const named = JSON.stringify(node_list.slice(0, 200));
      const what = `sinfo names nodes of the partition ${partition} in a form nobody knows, and they are left out: ${named}`;
      if (this.#unreadable.has(what)) return;
      this.#unreadable.add(what);
      this.#onUnreadable(what);
    });
  }

  async submit(script: Script, directives: readonly Directive[]): Promise<SubmittedJob> {
    const result = await this.#sbatch(['--parsable'], script, directives);
    // Site wrappers print messages on stdout too: the number is the last line that looks like one.
    const line = result.stdout
      .split('\n')
      .map((text) => text.trim())
      .findLast((text) => /^\d+(;\S+)?$/.test(text));
    if (line === undefined)
      throw new HpcserveError('E_SLURM_ANSWER', {
        what: 'sbatch succeeded but printed no job number',
        because: [result.stdout.trim(), ...refusalLines(result.stderr)].filter((text) => text !== ''),
        details: { may_have_been_submitted: true },
      });
    const [job_id = '', cluster] = line.split(';');
    return {
      job_id,
      cluster,
      warnings: refusalLines(result.stderr),
    };
  }

  async estimateStart(script: Script, directives: readonly Directive[]): Promise<StartEstimate> {
    const result = await this.#sbatch(['--test-only'], script, directives, utcPrefix);
    const match =
      /to start at (\S+)(?:\s+a?t?\s*)using (\d+) processors on (?:nodes )?(\S+)(?: in partition (\S+))?/.exec(
        `${result.stderr}\n${result.stdout}`,
      );
    const start_time_ms = parseUtcTime_ms(match?.[1]);
    if (match === null || start_time_ms === undefined)
      throw new HpcserveError('E_SLURM_ANSWER', {
        what: 'the estimated start could not be read',
        because: refusalLines(result.stderr),
      });
    return {
      start_time_ms,
      processors: Number(match[2]),
      node_list: match[3]!,
      partition: match[4],
    };
  }

  async jobs(job_ids: readonly string[]): Promise<JobInfo[]> {
    const wanted = [...new Set(job_ids.map(jobNumber))];
    if (wanted.length === 0) return [];
    const bases = [...new Set(wanted.map((id) => parseJobNumber(id)!.base))];
    const queued = new Map<string, JobInfo[]>();
    for (const job of await this.#squeue([`--jobs=${bases.join(',')}`]))
      queued.set(job.base_job_id, [...(queued.get(job.base_job_id) ?? []), job]);
    const found = new Set<JobInfo>();
    const missing: string[] = [];
    for (const id of wanted) {
      const told = (queued.get(parseJobNumber(id)!.base) ?? []).filter((job) => tellsOf(job, id));
      if (told.length === 0) missing.push(id);
      for (const job of told) found.add(job);
    }
    return missing.length === 0 ? [...found] : [...found, ...(await this.#past(missing))];
  }

  async accounted(job_ids: readonly string[]): Promise<JobInfo[]> {
    const wanted = [...new Set(job_ids.map(jobNumber))];
    if (wanted.length === 0 || !(await this.#asksAccounting())) return [];
    // Without it, the last run of each number.
    return this.#sacct(wanted, ['--duplicates']);
  }

  async myJobs(): Promise<JobInfo[]> {
    const { name, uid } = await this.#me();
    if (uid === undefined) return this.#squeue([`--user=${name}`]);
    const numbers = await this.#numbersOf(uid);
    return numbers.length === 0 ? [] : this.#squeue([`--jobs=${numbers.join(',')}`]);
  }

  async permissions(): Promise<Permissions> {
    const config = await this.config();
    const enforced = enforcedBy(config);
    const [associations, reservations] = await Promise.all([
      config.has_accounting ? this.#associations(config.cluster_name) : undefined,
      this.reservations(),
    ]);
    return { enforced, associations, reservations };
  }

  async clusters(): Promise<ClusterName[] | undefined> {
    const listed = await this.#sacctmgr(clustersArgv);
    return listed === undefined ? undefined : parseClusters(listed);
  }

  async #associations(cluster: string): Promise<Association[] | undefined> {
    const { name } = await this.#me();
    if (name === undefined) return undefined;
    const listed = await this.#sacctmgr(associationsArgv(name, cluster));
    return listed === undefined ? undefined : parseAssociations(listed);
  }

  /** Undefined where sacctmgr is not there or not for everybody, or slurmdbd is away: Slurm itself then judges. */
  async #sacctmgr(argv: readonly string[]): Promise<string | undefined> {
    try {
      const listed = await this.#run(argv);
      return listed.code === 0 ? listed.stdout : undefined;
    } catch (error) {
      const away = ['E_SLURM_COMMAND_MISSING', 'E_SLURM_UNREACHABLE'];
      if (error instanceof HpcserveError && away.includes(error.code)) return undefined;
      throw error;
    }
  }

  #me(): Promise<UserThere> {
    this.#user ??= this.#remember(this.#userThere(), () => {
      this.#user = undefined;
    });
    return this.#user;
  }

  async #userThere(): Promise<UserThere> {
    const answer = await this.#run(['id', '-un']);
    if (answer.code === 0) return { name: answer.stdout.trim() };
    return { uid: (await this.#ask(['id', '-u'])).trim() };
  }

  /** `squeue --user` refuses a uid that has no entry where it runs, whatever jobs the controller has of it. */
  async #numbersOf(uid: string): Promise<string[]> {
    const argv = ['squeue', '--noheader', '--all', '--states=all', `--Format=${ownersFormat}`];
    return parseOwners(await this.#ask(argv))
      .filter((job) => job.uid === uid)
      .map(({ job_id }) => job_id);
  }

  async expectedStarts(): Promise<ExpectedStart[]> {
    const argv = ['squeue', '--noheader', '--all', '--states=PENDING', `--Format=${startsFormat}`];
    return parseExpectedStarts(await this.#ask([...utcPrefix, ...argv]));
  }

  async reservations(): Promise<SlurmReservation[]> {
    return parseReservations(
      await this.#ask([...utcPrefix, 'scontrol', '--oneliner', 'show', 'reservation']),
    );
  }

  async cancel(job_ids: readonly string[], options: CancelOptions = {}): Promise<void> {
    const wanted = [...new Set(job_ids.map(jobNumber))];
    if (wanted.length === 0) return;
    const flags = [
      ...(options.signal === undefined ? [] : [`--signal=${options.signal}`]),
      ...(options.batch === true ? ['--batch'] : []),
    ];
    const result = await this.#run(['scancel', ...flags, ...wanted]);
    const words = refusalLines(result.stderr).filter((line) => !isGoneMessage(line));
    if (result.code === 0 || words.length === 0) return;
    throw words.some((line) => /access\/permission denied/i.test(line))
      ? new HpcserveError('E_SLURM_NOT_ALLOWED', {
          what: `Slurm does not let you end job ${wanted.join(', ')}`,
          because: words,
        })
      : commandFailed(['scancel'], { ...result, stderr: words.join('\n') });
  }

  async #squeue(selection: readonly string[]): Promise<JobInfo[]> {
    const argv = ['squeue', '--noheader', '--all', '--states=all', `--Format=${squeueFormat}`, ...selection];
    const result = await this.#run([...utcPrefix, ...argv]);
    if (result.code !== 0) {
      if (/invalid job id/i.test(result.stderr)) return [];
      throw commandFailed(argv, result);
    }
    return parseSqueue(result.stdout);
  }

  async #past(job_ids: readonly string[]): Promise<JobInfo[]> {
    if (!(await this.#asksAccounting())) return this.#remembered(job_ids);
    try {
      return await this.#sacct(job_ids);
    } catch (error) {
      // slurmdbd is another host than the controller, and may be away for hours: what that knows is not held back.
      if (!(error instanceof HpcserveError) || error.code !== 'E_SLURM_UNREACHABLE') throw error;
      return this.#remembered(job_ids);
    }
  }

  #asksAccounting(): Promise<boolean> {
    this.#hasAccounting ??= this.#remember(
      this.config().then((config) => config.has_accounting),
      () => {
        this.#hasAccounting = undefined;
      },
    );
    return this.#hasAccounting;
  }

  async #sacct(job_ids: readonly string[], flags: readonly string[] = []): Promise<JobInfo[]> {
    const argv = [
      'sacct',
      '--noheader',
      '--parsable2',
      '--allocations',
      ...flags,
      `--delimiter=${sacctDelimiter}`,
      `--format=${sacctFormat}`,
      `--jobs=${job_ids.join(',')}`,
      // Of the commands in use here, it alone does not go by SLURM_CLUSTERS.
      ...(this.#cluster === undefined ? [] : [`--clusters=${this.#cluster}`]),
    ];
    return parseSacct(await this.#ask([...utcPrefix, ...argv]));
  }

  async #remembered(job_ids: readonly string[]): Promise<JobInfo[]> {
    const found: JobInfo[] = [];
    for (const id of job_ids) {
      const argv = ['scontrol', '--oneliner', 'show', 'job', id];
      const result = await this.#run([...utcPrefix, ...argv]);
      // That an array has no such task any more is said on stdout, and in 26.05 on stderr.
      const said = `${result.stdout}\n${result.stderr}`;
      const gone = isGoneMessage(result.stderr) || /^(scontrol: )?(error: )?Job \S+ not found$/m.test(said);
      if (result.code !== 0 && !gone) throw commandFailed(argv, result);
      if (result.code === 0)
        found.push(
          ...result.stdout
            .split('\n')
            .filter((line) => line.startsWith('JobId='))
            .map(parseScontrolJob),
        );
    }
    return found;
  }

  async #sbatch(
    flags: readonly string[],
    script: Script,
    directives: readonly Directive[],
    prefix: readonly string[] = [],
  ): Promise<CommandResult> {
    const argv = [...prefix, 'sbatch', ...flags, ...('path' in script ? [script.path] : [])];
    let result: CommandResult;
    try {
      result = await this.#run(argv, 'text' in script ? script.text : undefined);
    } catch (error) {
      throw flags.includes('--parsable') ? perhapsSubmitted(error) : error;
    }
    if (result.code === 0) return result;
    const refusal = refusalError(result.stderr, directives);
    throw flags.includes('--parsable') ? perhapsSubmitted(refusal) : refusal;
  }

  /** Standard output of a command that must succeed. */
  async #ask(argv: readonly string[]): Promise<string> {
    const result = await this.#run(argv);
    if (result.code !== 0) throw commandFailed(argv, result);
    return result.stdout;
  }

  async #run(argv: readonly string[], input?: string): Promise<CommandResult> {
    const where = this.#cluster === undefined ? [] : ['env', `SLURM_CLUSTERS=${this.#cluster}`];
    const result = await this.#runner.run([...where, ...argv], {
      timeout_ms: this.#timeout_ms,
      input,
    });
    if (result.code === 127 && /no such file|not found/i.test(result.stderr))
      throw commandMissing(programOf(argv));
    return result;
  }

  /** A promise that is forgotten when it fails, so that the next caller asks again. */
  #remember<T>(promise: Promise<T>, forget: () => void): Promise<T> {
    promise.catch(forget);
    return promise;
  }
}

/** Whether this client knows the output formats of that version. */
export function isSupported(version: SlurmVersion): boolean {
  return atLeast(version, oldestSlurm.year, oldestSlurm.month);
}

function jobNumber(job_id: string): string {
  if (parseJobNumber(job_id) === undefined)
    throw new HpcserveError('E_SLURM_JOB_UNKNOWN', { what: `${JSON.stringify(job_id)} is no job number` });
  return job_id;
}

function isGoneMessage(words: string): boolean {
  return /invalid job id|job\/step already completing or completed|already (finished|completed)/i.test(words);
}

function programOf(argv: readonly string[]): string {
  return argv.find((word) => word !== 'env' && !word.includes('=')) ?? '';
}

function commandFailed(argv: readonly string[], result: CommandResult): HpcserveError {
  const words = refusalLines(result.stderr);
  const error = refusalError(result.stderr, []);
  const program = programOf(argv);
  const details = { argv: [...argv], code: result.code };
  if (error.code === 'E_SLURM_UNREACHABLE' || error.code === 'E_SLURM_CLUSTER')
    return new HpcserveError(error.code, {
      what: error.message,
      because: words.map((line) => `${program}: ${line}`),
      try: error.try,
      details: { ...details, retryable: error.code === 'E_SLURM_UNREACHABLE' },
    });
  return new HpcserveError('E_SLURM_ANSWER', {
    what: `${program} failed with exit code ${result.code}`,
    because: words.length > 0 ? words : 'it gave no reason',
    details,
  });
}

/** When the answer got lost the job may be in the queue all the same. */
function perhapsSubmitted(error: unknown): unknown {
  if (!(error instanceof HpcserveError) || error.code !== 'E_SLURM_UNREACHABLE') return error;
  return new HpcserveError(error.code, {
    what: error.message,
    because: error.because,
    try: 'wait until Slurm answers again and run the same command: it looks for the job before it submits another',
    details: { ...error.details, may_have_been_submitted: true, retryable: true },
    cause: error,
  });
}
