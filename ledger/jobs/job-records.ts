/**
 * Records of jobs, `<state_dir>/<site>/jobs/<deployment>.jsonl`: a line each, the last of a run counts. Whoever holds
 * the lock of a deployment writes its file, which outlives the deployment; everybody reads.
 */
import { closeSync, fstatSync, fsyncSync, openSync, readSync, writeSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { type JobRecord, jobRecordSchema, runKey } from '../../spec/job-record.ts';

const fileEnd = '.jsonl';

/** Adds records to the file of a deployment, on disk when it returns. @throws the system's error */
export function appendJobRecords(folder: string, deployment: string, records: readonly JobRecord[]): void {
  if (records.length === 0) return;
  makeFolders(folder);
  const file = openSync(join(folder, deployment + fileEnd), 'a+', 0o600);
  try {
    // A disk that was full, or a kill, may have left the beginning of a line.
    const begin = endsLine(file) ? '' : '\n';
    const bytes = Buffer.from(begin + records.map((record) => `${JSON.stringify(record)}\n`).join(''));
    for (let offset = 0; offset < bytes.length; ) offset += writeSync(file, bytes, offset);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

function endsLine(file: number): boolean {
  const { size } = fstatSync(file);
  const last = Buffer.alloc(1);
  return size === 0 || readSync(file, last, 0, 1, size - 1) === 0 || last.toString() === '\n';
}

/** All runs of jobs that folders have records of, the earliest first. Lines that are no record are left out. */
export async function readJobRecords(folders: readonly string[]): Promise<JobRecord[]> {
  const runs = new Map<string, JobRecord>();
  for (const folder of folders)
    for (const name of await filesOf(folder))
      for (const line of (await readFile(join(folder, name), 'utf8')).split('\n')) {
        const record = recordOf(line);
        if (record) runs.set(runKey(record), record);
      }
  return [...runs.values()].sort((a, b) => a.start_ms - b.start_ms);
}

async function filesOf(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder)).filter((name) => name.endsWith(fileEnd)).sort();
  } catch (error) {
    // It appears with the first job.
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

function recordOf(line: string): JobRecord | undefined {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch {
    return undefined;
  }
  return jobRecordSchema.safeParse(json).data;
}
