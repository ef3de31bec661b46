/** A lock file that names its owner's process, so that the lock of a dead one is taken over. */
import { readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs';
import { isAlive, waitUntil } from './processes.ts';

/** Runs `work` while this process alone holds `path`; waits at most `timeout_ms` for it. */
export async function withLock<T>(path: string, timeout_ms: number, work: () => Promise<T>): Promise<T> {
  if (!(await waitUntil(() => tryLock(path), timeout_ms)))
    throw new Error(`${path} is still held by process ${owner(path)} after ${timeout_ms} ms`);
  try {
    return await work();
  } finally {
    unlinkSync(path);
  }
}

function tryLock(path: string): boolean {
  try {
    writeFileSync(path, `${process.pid}\n`, { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const holder = owner(path);
  if (holder !== undefined && !isAlive(holder)) removeStale(path, holder);
  return false;
}

/** Moves the lock aside before deleting it, so that of two finders only one removes it. */
function removeStale(path: string, holder: number): void {
  const aside = `${path}.stale-${holder}-${process.pid}`;
  try {
    renameSync(path, aside);
    unlinkSync(aside);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}

/** The process that holds the lock; undefined while it is being written or is gone. */
function owner(path: string): number | undefined {
  try {
    const pid = Number.parseInt(readFileSync(path, 'utf8'), 10);
    return Number.isInteger(pid) ? pid : undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}
