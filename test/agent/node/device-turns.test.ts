/** Several engines that may sleep, on one device: one is awake, and requests decide which. */
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { eventually } from '../../mesh/support.ts';
import { writeVllmSources } from '../adapters/vllm-sources.ts';
import { Site, unitOf } from '../support.ts';

/** As `sleep.test.ts` has it; all engines of the device write to one file who is awake on it. */
async function installed(site: Site): Promise<Record<string, string>> {
  const folder = join(site.folder, 'installed');
  await writeVllmSources(folder, '0.18.0');
  const server = fileURLToPath(new URL('../adapters/vllm-rules.mjs', import.meta.url));
  await mkdir(join(folder, 'bin'));
  await writeFile(join(folder, 'bin/vllm'), `#!/bin/sh\nexec '${process.execPath}' '${server}' "$@"\n`);
  await chmod(join(folder, 'bin/vllm'), 0o755);
  return {
    PATH: `${join(folder, 'bin')}${delimiter}${process.env.PATH}`,
    PYTHONPATH: folder,
    VLLM_RULES_DEVICE: join(site.folder, 'device'),
  };
}

const sleeping = (name: string) => unitOf({ name, engine_args: ['--enable-sleep-mode'] }, { engine: 'vllm' });

test('three start one after the other, and each is woken when its turn comes; two are never awake', async () => {
  await using site = await Site.open();
  const names = ['one', 'two', 'three'];
  const agent = await site.start(names.map(sleeping), {}, await installed(site));
  const records = await Promise.all(names.map((name) => site.serving(name, 60_000)));
  const ask = async (at: number): Promise<string> => {
    const { body, statusCode } = await site.ask(records[at]!, 'hello');
    expect(statusCode).toBe(200);
    return JSON.parse(await body.text()).choices[0].message.content;
  };
  // All at once, more than a turn's worth of each; then the first again, which sleeps by then or does not.
  const all = await Promise.all(Array.from({ length: 12 }, (_, request) => ask(request % 3)));
  expect(all).toEqual(Array(12).fill('awake'));
  expect(await ask(0)).toBe('awake');
  const words = async (name: string) =>
    (await agent.engineLog(`${name}-0`)).filter((line) => /^(sleep|wake|asked|beside)/.test(line));
  for (const name of names) {
    const told = await eventually(async () => {
      const lines = await words(name);
      return lines.filter((line) => line === 'asked').length >= 4 ? lines : undefined;
    }, 'answers');
    expect(told).not.toContain('asked asleep');
    // What it says where another has the device's memory as it starts or wakes.
    expect(told.filter((line) => line.startsWith('beside'))).toEqual([]);
    // Four requests at once are one turn, not four.
    expect(told.filter((line) => line === 'wake').length).toBeLessThanOrEqual(2);
  }
}, 90_000);

test('one that ends leaves the device to the others, and comes back when it can', async () => {
  await using site = await Site.open();
  const agent = await site.start(['one', 'two'].map(sleeping), {}, await installed(site));
  const [one, two] = await Promise.all(['one', 'two'].map((name) => site.serving(name, 60_000)));
  const answer = async (record: typeof one): Promise<number> => {
    const { body, statusCode } = await site.ask(record!, 'hello');
    await body.dump();
    return statusCode;
  };
  expect(await answer(one)).toBe(200);
  const before = (await agent.engineLog('one-0')).find((line) => line.startsWith('pid '))!;
  process.kill(Number(before.split(' ')[1]), 'SIGKILL');
  expect(await answer(two)).toBe(200);
  const again = await eventually(async () => {
    const record = await site.serving('one', 60_000);
    return record.session_id === one!.session_id ? undefined : record;
  }, 'a new session');
  expect(await answer(again)).toBe(200);
  expect(await answer(two)).toBe(200);
}, 90_000);
