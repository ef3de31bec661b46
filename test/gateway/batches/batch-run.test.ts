/** A batch whose results are kept in a real sealed folder, on a disk that has no room now and then. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { BatchRun, type BatchRunOptions } from '../../../gateway/batches/batch-run.ts';
import { ResultParts } from '../../../gateway/batches/result-parts.ts';
import { SealedFolder } from '../../../gateway/kept/sealed-folder.ts';

const key_id = 'key_1';
const batch_id = 'batch_1';
const requests = 100;
const kept = { kept_ms: 3_600_000, owner_bytes_max: 1e9 };

/** Fails as a full disk does, a given number of times. */
class FullFolder extends SealedFolder {
  failures_left = 0;

  override async put(...entry: Parameters<SealedFolder['put']>): Promise<void> {
    if (this.failures_left-- > 0)
      throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
    await super.put(...entry);
  }
}

let root: string;
let folder: FullFolder;
let logged: string[];
let unhandled: unknown[];
const note = (reason: unknown): void => void unhandled.push(reason);

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-batch-'));
  folder = new FullFolder(root, randomBytes(32), kept);
  logged = [];
  unhandled = [];
  process.on('unhandledRejection', note);
});
afterEach(() => {
  process.off('unhandledRejection', note);
  rmSync(root, { recursive: true });
});

type Ask = BatchRunOptions['ask'];

const answered: Ask = async (body) => {
  await new Promise((resolve) => setTimeout(resolve, 2));
  return { status: 200, headers: new Map(), body };
};

function runOf({
  stop = new AbortController(),
  closing = new AbortController(),
  asked = [] as string[],
  answer = answered,
}) {
  const lines = Array.from({ length: requests }, (_, at) => ({ custom_id: `r${at}`, body: { at } }));
  const log = pino({ level: 'info' }, { write: (line: string) => void logged.push(line) });
  const results = new ResultParts({ key_id, batch_id, requests, folder, log });
  return new BatchRun(
    {
      lines,
      results,
      closing: closing.signal,
      save_ms: 5,
      expires_at_ms: Date.now() + 60_000,
      ask: (body, ...more) => {
        asked.push(body.toString());
        return answer(body, ...more);
      },
      progress: () => undefined,
    },
    stop,
  );
}

/** Which requests have results in the parts, as a run that goes on later finds them. */
async function keptInParts(): Promise<number[]> {
  const found: number[] = [];
  for (let part = 0; ; part++) {
    const bytes = await folder.get(key_id, `part-1x${part}`);
    if (!bytes) return found.sort((a, b) => a - b);
    for (const line of bytes.toString().trimEnd().split('\n')) found.push(Number(line.split(' ')[0]));
  }
}

const all = Array.from({ length: requests }, (_, at) => at);

it('keeps all results of a disk that had no room for a while, and the process goes on', async () => {
  folder.failures_left = 2;
  await runOf({}).run();
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(unhandled).toEqual([]);
  expect(await keptInParts()).toEqual(all);
  expect(logged.filter((line) => line.includes('cannot be kept')).length).toBe(1);
  expect(logged.join('')).toContain('ENOSPC');
  expect(logged.join('')).toContain('are kept again');
});

it('asks no more than it may lose while nothing can be kept, and ends with the gateway', async () => {
  folder.failures_left = Number.POSITIVE_INFINITY;
  const [stop, closing] = [new AbortController(), new AbortController()];
  const asked: string[] = [];
  const running = runOf({ stop, closing, asked }).run();
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(asked.length).toBeGreaterThanOrEqual(64);
  expect(asked.length).toBeLessThan(64 + 2 * 16);
  stop.abort();
  closing.abort();
  await running;
  expect(await keptInParts()).toEqual([]);
  // The next run, with room on the disk, has everything.
  folder.failures_left = 0;
  await runOf({}).run();
  expect(await keptInParts()).toEqual(all);
});

it.each([
  [429, 2],
  [502, 1],
  [503, 1],
])('asks a request whose answer is %i and says not to ask again %i times', async (status, times) => {
  const asked: string[] = [];
  const refused = JSON.stringify({ at: 0 });
  const answer: Ask = async (body, ...more) => {
    const isFirst = asked.filter((one) => one === refused).length === 1;
    if (body.toString() !== refused || !isFirst) return answered(body, ...more);
    return { status, headers: new Map([['x-should-retry', 'False']]), body };
  };
  await runOf({ asked, answer }).run();
  expect(asked.filter((one) => one === refused)).toHaveLength(times);
  expect(await keptInParts()).toEqual(all);
});
