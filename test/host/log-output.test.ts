import { execFileSync } from 'node:child_process';
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { LogOutput } from '../../host/log-output.ts';

/** More than the pause behind a failed write. */
const retried_ms = 1200;

/** A pipe that takes nothing more until it is read, as a disk that is full until something is removed. */
describe('a log that cannot be written', () => {
  let folder: string;
  let pipe: number;
  let filled_bytes: number;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'hpcserve-log-'));
    execFileSync('mkfifo', [join(folder, 'log')]);
    pipe = openSync(join(folder, 'log'), constants.O_RDWR | constants.O_NONBLOCK);
    filled_bytes = 0;
    const filler = Buffer.alloc(4096, '.');
    expect(() => {
      for (;;) filled_bytes += writeSync(pipe, filler);
    }).toThrow(/EAGAIN/);
  });
  afterEach(() => {
    closeSync(pipe);
    rmSync(folder, { recursive: true });
  });

  /** All that comes until nothing has come for longer than a pause. */
  async function drained(): Promise<string> {
    const chunks: Buffer[] = [];
    for (let quiet_ms = 0; quiet_ms < 2 * retried_ms; quiet_ms += 20) {
      const chunk = Buffer.alloc(4096);
      try {
        const bytes = readSync(pipe, chunk);
        chunks.push(chunk.subarray(0, bytes));
        quiet_ms = 0;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
        await delay(20);
      }
    }
    return Buffer.concat(chunks).subarray(filled_bytes).toString();
  }

  it('keeps so many lines and says how many it lost, however long that lasts', async () => {
    const output = new LogOutput(pipe);
    const rounds = 5;
    const lines = 900;
    for (let round = 0; round < rounds; round++) {
      for (let line = 0; line < lines; line++) output.write(`{"round":${round},"line":${line},"msg":"é"}\n`);
      await delay(retried_ms);
    }
    const written = (await drained()).trimEnd().split('\n');
    const notices = written.filter((line) => line.includes('lines were lost'));
    const kept = written.filter((line) => !notices.includes(line));
    expect(kept.length).toBeLessThanOrEqual(2000);
    expect(kept.at(-1)).toBe(`{"round":${rounds - 1},"line":${lines - 1},"msg":"é"}`);
    expect(notices).toEqual([
      expect.stringMatching(new RegExp(`"${rounds * lines - kept.length} lines were lost: .*EAGAIN`)),
    ]);
    for (const line of kept) expect(() => JSON.parse(line) as unknown).not.toThrow();
  });
});
