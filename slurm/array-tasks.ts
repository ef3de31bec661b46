/**
 * Tasks of job arrays in Slurm's words. A task that runs, ran or was split off has a line of its own (`123_4`); those
 * that wait stand together as a range (`123_[4-7,9%2]` in squeue and sacct, `4-7,9%2` in scontrol).
 */
import type { JobInfo } from '../spec/slurm-types.ts';

/** What sbatch returned, and the task of that array where one is meant: `123`, `123_4`. */
export interface JobNumber {
  base: string;
  task?: number;
}

/** @returns undefined for what is no number of a job or of a task */
export function parseJobNumber(job_id: string): JobNumber | undefined {
  const match = /^(\d+)(?:_(\d+))?$/.exec(job_id);
  if (match === null) return undefined;
  const [, base = '', task] = match;
  return task === undefined ? { base } : { base, task: Number(task) };
}

export function taskId(base: string, task: number): string {
  return `${base}_${task}`;
}

/** Whether a line that Slurm gave tells of this job, or of this task of an array. */
export function tellsOf(job: JobInfo, job_id: string): boolean {
  const number = parseJobNumber(job_id);
  if (number === undefined) return false;
  const { base, task } = number;
  if (task === undefined) return job.base_job_id === base || job.job_id === base;
  return job.base_job_id === base && holdsTask(job, task);
}

/** Whether a line of an array stands for the task, alone or with others. */
export function holdsTask({ array_task }: Pick<JobInfo, 'array_task'>, task: number): boolean {
  if (array_task === undefined) return false;
  if (array_task === String(task)) return true;
  return rangesOf(array_task).some(
    ({ first, last, step }) => task >= first && task <= last && (task - first) % step === 0,
  );
}

/** How many jobs a line stands for: those of its range, else one. */
export function tasksIn({ array_task }: Pick<JobInfo, 'array_task'>): number {
  if (array_task === undefined) return 1;
  const counts = rangesOf(array_task).map(({ first, last, step }) => Math.floor((last - first) / step) + 1);
  return counts.reduce((sum, count) => sum + count, 0);
}

interface TaskRange {
  first: number;
  last: number;
  step: number;
}

/** The ranges of `[0-15:4,20%2]`; the limit of tasks that run together does not matter here. */
function rangesOf(array_task: string): TaskRange[] {
  const text = array_task.replace(/^\[|\]$/g, '').replace(/%\d+$/, '');
  return text.split(',').flatMap((part): TaskRange[] => {
    const match = /^(\d+)(?:-(\d+)(?::(\d+))?)?$/.exec(part);
    if (match === null) return [];
    const [, first, last = first, step = '1'] = match;
    return [{ first: Number(first), last: Number(last), step: Math.max(1, Number(step)) }];
  });
}
