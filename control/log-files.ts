/** Which log files a deployment has, and their last lines. */
import { closeSync, existsSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { launchFiles } from '../spec/state-layout.ts';

export interface LogFile {
  path: string;
  launch_id: string;
  /** `job`, `agent` or `unit`. */
  kind: 'job' | 'agent' | 'unit';
  node?: string;
  unit?: string;
}

/** Log files of one launch: the job's first, then by node. Names are those of spec/state-layout.ts. */
export function logFilesOf(launchFolder: string, launchId: string, units: readonly string[]): LogFile[] {
  if (!existsSync(launchFolder)) return [];
  const files: LogFile[] = [];
  for (const name of readdirSync(launchFolder).sort()) {
    const path = join(launchFolder, name);
    if (name === launchFiles.log) files.unshift({ path, launch_id: launchId, kind: 'job' });
    else if (name.endsWith('.agent.log'))
      files.push({ path, launch_id: launchId, kind: 'agent', node: name.slice(0, -'.agent.log'.length) });
    else if (name.endsWith('.log')) {
      const unit = units.find((each) => name.endsWith(`.${each}.log`));
      const stem = name.slice(0, -'.log'.length);
      files.push({
        path,
        launch_id: launchId,
        kind: 'unit',
        node: unit ? stem.slice(0, -(unit.length + 1)) : stem,
        ...(unit ? { unit } : {}),
      });
    }
  }
  return files;
}

/** Most bytes read from the end of a log for its last lines. */
const tailBytes = 256 * 1024;

/** The last non-empty lines of a file, at most `count`; none where it is not there. */
export function lastLines(path: string, count: number): string[] {
  return tail(path, count).lines;
}

/** The last lines with the offset after them, so that a follower goes on exactly there. */
export function tail(path: string, count: number): { lines: string[]; offset: number } {
  let descriptor: number;
  try {
    descriptor = openSync(path, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { lines: [], offset: 0 };
    throw error;
  }
  try {
    const { size } = fstatSync(descriptor);
    const start = Math.max(0, size - tailBytes);
    const bytes = Buffer.alloc(size - start);
    const read = readSync(descriptor, bytes, 0, bytes.length, start);
    const lines = bytes.subarray(0, read).toString('utf8').split('\n');
    if (start > 0) lines.shift();
    const filled = lines.filter((line) => line.trim() !== '');
    return { lines: count > 0 ? filled.slice(-count) : [], offset: start + read };
  } finally {
    closeSync(descriptor);
  }
}
