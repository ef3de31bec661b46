/** Gateways of a site that start at once hash prompts with one salt. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { PromptTracer } from '../../../gateway/trace/prompt-tracer.ts';
import { packageRoot } from '../../../host/package-root.ts';

const program = join(packageRoot, 'dist/test/gateway/trace/salt-opener.js');
const rounds = 40;
/** Until both have read their line. */
const lead_ms = 15;

interface Opener {
  process: ChildProcessByStdio<Writable, Readable, null>;
  lines: AsyncIterator<string>;
}

let folder: string;
const openers: Opener[] = [];

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-salt-test-'));
  for (let index = 0; index < 2; index++) {
    const child = spawn(process.execPath, [program], { stdio: ['pipe', 'pipe', 'inherit'] });
    openers.push({ process: child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() });
  }
});
afterAll(async () => {
  for (const { process: child } of openers) child.kill();
  rmSync(folder, { recursive: true, force: true });
});

async function hashesOfBoth(site: string, at_ms: number): Promise<string[]> {
  for (const { process: child } of openers) child.stdin.write(`${at_ms} ${site}\n`);
  return await Promise.all(openers.map(async ({ lines }) => (await lines.next()).value as string));
}

it('of two processes that make it at the same moment one makes it, and both hash by it', async () => {
  const seen = new Set<string>();
  for (let round = 0; round < rounds; round++) {
    const site = mkdtempSync(join(folder, 'site-'));
    const [one, other] = await hashesOfBoth(site, Date.now() + lead_ms);
    expect(one, `round ${round}`).toMatch(/^[0-9a-f]{40,}$/);
    expect(other, `round ${round}`).toBe(one);
    seen.add(one!);
    expect(readdirSync(site)).toEqual(['trace.salt']);
    expect(statSync(join(site, 'trace.salt')).mode & 0o777).toBe(0o600);
  }
  // Each site has a salt of its own.
  expect(seen.size).toBe(rounds);
});

it('is refused where the file is damaged: nothing is hashed by a salt that others can guess', () => {
  const file = join(folder, 'damaged.salt');
  writeFileSync(file, 'short\n', { mode: 0o600 });
  expect(() => PromptTracer.open(file)).toThrow(expect.objectContaining({ code: 'E_GATEWAY_FOLDER' }));
});
