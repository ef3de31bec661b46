import { getPriority, setPriority } from 'node:os';

/**
 * Lets the calling thread give way to others: to Linux, a process id of 0 is that thread. One that is as nice already
 * stays as it is: jobs run niced where a site says so, and only root may take that back.
 */
export function giveWay(niceness: number): void {
  if (getPriority(0) < niceness) setPriority(0, niceness);
}
