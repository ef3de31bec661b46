/** Which log files a deployment has, and their last lines. */
import { closeSync, existsSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { launchFiles } from '../../spec/state-layout.ts';
import { findingOf, sentenceOf } from './findings.ts';
import { messageOf } from './readable-line.ts';

export interface LaunchLogFile {
  path: string;
  launch_id: string;
  /** `job`, `agent` or `unit`. */
  kind: 'job' | 'agent' | 'unit' | 'gateway';
  node?: string;
  unit?: string;
}

/** Log files of one launch: the job's first, then by node. Names are those of spec/state-layout.ts. */
export function logFilesOf(
  launchFolder: string,
  launchId: string,
  units: readonly string[],
): LaunchLogFile[] {
  if (!existsSync(launchFolder)) return [];
  const files: LaunchLogFile[] = [];
  for (const name of readdirSync(launchFolder).sort()) {
    const path = join(launchFolder, name);
    if (name === launchFiles.log) files.unshift({ path, launch_id: launchId, kind: 'job' });
    else if (name.endsWith('.agent.log'))
      files.push({ path, launch_id: launchId, kind: 'agent', node: name.slice(0, -'.agent.log'.length) });
    else if (name.endsWith('.log')) {
      const unit = units.find((each) => name.endsWith(`.${each}.log`));
      const stem = name.slice(0, -'.log'.length);
      const node = unit ? stem.slice(0, -(unit.length + 1)) : stem;
      const file: LaunchLogFile = { path, launch_id: launchId, kind: 'unit', node };
      if (unit) file.unit = unit;
      files.push(file);
    }
  }
  return files;
}

/** Most bytes read from the end of a log for its last lines. */
const tail_bytes = 256 * 1024;

/**
 * Why a process ended, from the end of its log: the error it printed last as one line, else its last lines.
 * @param from bytes of the log that are of an earlier process.
 */
export function explainFromLog(path: string, from = 0): { because: string[]; try: string[] } {
  const { lines } = tail(path, 40, from);
  const at = lines.findLastIndex((line) => /^error: .* \[E_[A-Z_]+\]$/.test(line));
  const after = lines.slice(at + 1).findIndex((line) => !/^ {2}(because|try): /.test(line));
  const error = lines.slice(at, after < 0 ? undefined : at + 1 + after).join('\n');
  const finding = at < 0 ? undefined : findingOf(error);
  if (finding) return { because: [sentenceOf(finding)], try: finding.try };
  return { because: [...new Set(lines.slice(-5).map((line) => `log: ${messageOf(line).trim()}`))], try: [] };
}

/** The last lines with the offset after them, so that a follower goes on exactly there. */
export function tail(path: string, count: number, from = 0): { lines: string[]; offset: number } {
  let descriptor: number;
  try {
    descriptor = openSync(path, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { lines: [], offset: 0 };
    throw error;
  }
  try {
    const { size } = fstatSync(descriptor);
    const start = Math.max(0, from <= size ? from : 0, size - tail_bytes);
    const bytes = Buffer.alloc(size - start);
    const read = readSync(descriptor, bytes, 0, bytes.length, start);
    const lines = bytes.subarray(0, read).toString('utf8').split('\n');
    // Cut in the middle, unless it begins where an earlier process ended.
    if (start > 0 && start !== from) lines.shift();
    const filled = lines.filter((line) => line.trim() !== '');
    return { lines: count > 0 ? filled.slice(-count) : [], offset: start + read };
  } finally {
    closeSync(descriptor);
  }
}
