/** How a job ended, in words. */
import type { JobSnapshot } from '../state/job-snapshot.ts';

/** Of Linux (signal(7)), with the real-time ones. */
const signal_max = 64;

/**
 * What the exit code of a node agent says, as a shell reports it.
 * @returns undefined for 0. Codes above 128 are 128 + the signal that ended it.
 */
export function describeAgentExit(code: number): string | undefined {
  if (code === 0) return undefined;
  if (code === 137)
    return 'the node agent was killed (SIGKILL): by a person, or by the kernel for want of memory';
  // A container runtime that cannot start it ends with 255.
  if (code > 128 && code <= 128 + signal_max) return `the node agent ended by signal ${code - 128}`;
  return `the node agent ended with exit code ${code}`;
}

/** Slurm opens the job's log before it starts the script, and says no more where it cannot. */
const notLaunched =
  'its log could not be made in the folder of the launch: your quota or the disk is full (quota -s), or the node does not see the folder';

/** `FAILED, the node agent ended with exit code 8`; a code that says nothing more is left out. */
export function describeJobEnd({
  state,
  exit_code,
  reason,
}: Pick<JobSnapshot, 'state' | 'exit_code' | 'reason'>): string {
  const code = exit_code ? `exit code ${exit_code}` : '';
  const why = reason === 'JobLaunchFailure' ? `${reason}: ${notLaunched}` : (reason ?? '');
  return [state, reason?.includes(code) ? '' : code, why].filter(Boolean).join(', ');
}
