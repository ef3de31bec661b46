/** Jobs as squeue, scontrol and sacct report them, in one shape. */
import {
  type JobInfo,
  type JobState,
  jobPhase,
  jobStates,
  parseSlurmDuration_s,
} from '../spec/slurm-types.ts';
import { readHostlist } from './hostlist.ts';
import {
  longFormat,
  parseDelimited,
  parseLongFormat,
  parseScontrolLine,
  parseUtcTime_ms,
  present,
} from './text-format.ts';

const squeueFields = [
  'JobID',
  'JobArrayID',
  'HetJobID',
  'State',
  'Reason',
  'Comment',
  'NodeList',
  'Name',
  'UserName',
  'Account',
  'QOS',
  'Partition',
  'SubmitTime',
  'StartTime',
  'EndTime',
  'TimeLimit',
  'RestartCnt',
  'exit_code',
] as const;

/** squeue's `--Format` argument that `parseSqueue` reads. */
export const squeueFormat = longFormat(squeueFields);

const ownerFields = ['JobID', 'UserID'] as const;

/** squeue's `--Format` argument that `parseOwners` reads. */
export const ownersFormat = longFormat(ownerFields);

/** Whose each job is. @throws E_SLURM_ANSWER when the output has another form. */
export function parseOwners(output: string): { job_id: string; uid: string }[] {
  return parseLongFormat('squeue', ownerFields, output).map((row) => ({
    job_id: row.JobID,
    uid: row.UserID,
  }));
}

/** @throws E_SLURM_ANSWER when the output has another form. */
export function parseSqueue(output: string): JobInfo[] {
  return parseLongFormat('squeue', squeueFields, output).map((row) => {
    const state = parseJobState(row.State);
    return jobInfo({
      job_id: row.JobID,
      display_id: row.JobArrayID,
      state,
      reason: row.Reason,
      comment: row.Comment,
      node_list: row.NodeList,
      name: row.Name,
      user: row.UserName,
      account: row.Account,
      qos: row.QOS,
      partition: row.Partition,
      submit: row.SubmitTime,
      start: row.StartTime,
      end: row.EndTime,
      time_limit_s: parseSlurmDuration_s(row.TimeLimit),
      restart_count: row.RestartCnt,
      exit: jobPhase(state) === 'ended' ? parseExit(row.exit_code) : {},
      source: 'squeue',
    });
  });
}

/**
 * No signal: what 24.11 and 26.05 report where slurmstepd cannot make the log, which was the reason JobLaunchFailure in
 * 22.05.
 */
const not_started_signal = 53;

/** One line of `scontrol --oneliner show job`. */
export function parseScontrolJob(line: string): JobInfo {
  const pairs = parseScontrolLine(line);
  const get = (key: string): string => pairs.get(key) ?? '';
  const state = parseJobState(get('JobState'));
  const array = present(pairs.get('ArrayJobId'));
  const het = present(pairs.get('HetJobId'));
  const id = get('JobId');
  const display_id =
    array !== undefined
      ? `${array}_${get('ArrayTaskId')}`
      : het !== undefined
        ? `${het}+${get('HetJobOffset')}`
        : id;
  return jobInfo({
    job_id: id,
    display_id,
    state,
    reason: get('Reason'),
    comment: get('Comment'),
    node_list: get('NodeList'),
    name: get('JobName'),
    user: get('UserId').replace(/\(.*$/, ''),
    account: get('Account'),
    qos: get('QOS'),
    partition: get('Partition'),
    submit: get('SubmitTime'),
    start: get('StartTime'),
    end: get('EndTime'),
    time_limit_s: parseSlurmDuration_s(get('TimeLimit')),
    restart_count: get('Restarts'),
    exit: jobPhase(state) === 'ended' ? parseExit(get('ExitCode')) : {},
    source: 'scontrol',
  });
}

const sacctFields = [
  'JobIDRaw',
  'JobID',
  'State',
  'ExitCode',
  'Reason',
  'Partition',
  'JobName',
  'User',
  'Account',
  'QOS',
  'NodeList',
  'Submit',
  'Start',
  'End',
  'TimelimitRaw',
  'Comment',
] as const;

/** sacct's `--format` argument that `parseSacct` reads. */
export const sacctFormat = sacctFields.join(',');

/** @throws E_SLURM_ANSWER when the output has another form. */
export function parseSacct(output: string): JobInfo[] {
  return parseDelimited('sacct', sacctFields, output).map((row) =>
    jobInfo({
      job_id: row.JobIDRaw,
      display_id: row.JobID,
      // "CANCELLED by 1001"
      state: parseJobState(row.State.split(' ', 1)[0] ?? ''),
      reason: row.Reason,
      comment: row.Comment,
      node_list: row.NodeList,
      name: row.JobName,
      user: row.User,
      account: row.Account,
      qos: row.QOS,
      partition: row.Partition,
      submit: row.Submit,
      start: row.Start,
      end: row.End,
      time_limit_s: /^\d+$/.test(row.TimelimitRaw) ? Number(row.TimelimitRaw) * 60 : undefined,
      restart_count: '',
      exit: parseExit(row.ExitCode),
      source: 'sacct',
    }),
  );
}

interface RawJob {
  job_id: string;
  /** As Slurm shows it to people: `30_1`, `30_[2-5%1]`, `32+1`, or the plain number. */
  display_id: string;
  state: JobState;
  reason: string;
  comment: string;
  node_list: string;
  name: string;
  user: string;
  account: string;
  qos: string;
  partition: string;
  submit: string;
  start: string;
  end: string;
  time_limit_s: number | undefined;
  restart_count: string;
  exit: { exit_code?: number; exit_signal?: number };
  source: JobInfo['source'];
}

function jobInfo(raw: RawJob): JobInfo {
  const phase = jobPhase(raw.state);
  const [base = raw.job_id, array_task] = raw.display_id.split('_', 2);
  const [het_base = base, het_offset] = base.split('+', 2);
  const node_list = raw.node_list === '(null)' || raw.node_list.startsWith('None') ? '' : raw.node_list;
  const start_time_ms = parseUtcTime_ms(raw.start);
  const notStarted = raw.state === 'FAILED' && raw.exit.exit_signal === not_started_signal;
  const exit = notStarted ? undefined : raw.exit;
  // Of a run that went back into the queue, sacct alone tells the end; elsewhere it is an estimate.
  const hasEnd = phase !== 'waiting' || raw.source === 'sacct';
  const end_time_ms = hasEnd ? parseUtcTime_ms(raw.end) : undefined;
  return {
    job_id: raw.job_id,
    base_job_id: het_base,
    ...defined('array_task', array_task),
    ...defined('het_offset', het_offset === undefined ? undefined : Number(het_offset)),
    state: raw.state,
    phase,
    ...defined('reason', present(notStarted ? 'JobLaunchFailure' : raw.reason)),
    name: raw.name,
    user: raw.user,
    ...defined('account', present(raw.account)),
    ...defined('qos', present(raw.qos)),
    partition: raw.partition,
    ...defined('comment', present(raw.comment)),
    node_list,
    nodes: readHostlist(node_list) ?? [],
    ...defined('submit_time_ms', parseUtcTime_ms(raw.submit)),
    ...defined('start_time_ms', start_time_ms),
    start_is_estimate: phase === 'waiting' && start_time_ms !== undefined,
    ...defined('end_time_ms', end_time_ms),
    ...defined('time_limit_s', raw.time_limit_s),
    ...defined('restart_count', /^\d+$/.test(raw.restart_count) ? Number(raw.restart_count) : undefined),
    ...exit,
    source: raw.source,
  };
}

function defined<K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } {
  return value === undefined ? {} : ({ [key]: value } as { [P in K]?: V });
}

/**
 * Exit status and signal: `1:0` and `0:15` from scontrol, sacct and newer squeue; the raw wait status, such
 * as 256 or 15, from older squeue.
 */
export function parseExit(text: string): { exit_code?: number; exit_signal?: number } {
  const pair = /^(\d+):(\d+)/.exec(text);
  if (pair !== null) return exitOf(Number(pair[1]), Number(pair[2]));
  if (!/^\d+$/.test(text)) return {};
  const status = Number(text);
  const signal = status & 0x7f;
  return exitOf(signal === 0 ? (status >> 8) & 0xff : 0, signal);
}

function exitOf(exit_code: number, signal: number): { exit_code: number; exit_signal?: number } {
  return signal === 0 ? { exit_code } : { exit_code, exit_signal: signal };
}

/** A later Slurm may have more states: nothing is guessed of the job then, and nothing lost of the others. */
export function parseJobState(word: string): JobState {
  const state = word.toUpperCase().replace(/\+$/, '');
  return jobStates.find((candidate) => candidate === state) ?? 'UNKNOWN';
}
