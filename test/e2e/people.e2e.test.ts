/** What people do at a terminal: they are asked, they wait for each other, they mistype, they press Ctrl-C. */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type IPty, spawn as spawnPty } from 'node-pty';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { aroundChange } from '../../control/state/locks.ts';
import { FolderLock } from '../../host/folder-lock.ts';
import { packageRoot } from '../../host/package-root.ts';
import { type Home, temporaryHome } from '../cli/support.ts';

let home: Home;

beforeAll(async () => {
  home = temporaryHome();
  const made = await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1']);
  expect(made.code, made.stderr).toBe(0);
  write('demo', 512);
  const { code, stderr } = await home.run(['deploy', 'demo.yaml', '--timeout', '60s']);
  expect(code, stderr).toBe(0);
}, 120_000);
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
}, 120_000);

function write(name: string, context_tokens: number, more: Record<string, unknown> = {}): void {
  const model = { name, source: './toy.gguf', cpu_threads: 1, context_tokens, max_sequences: 2, ...more };
  writeFileSync(join(home.folder, `${name}.yaml`), JSON.stringify({ name, models: [model] }));
}

/** `hpcserve` at a terminal of its own. */
class Typed {
  readonly #pty;
  screen = '';
  readonly ended: Promise<number>;

  constructor(...argv: string[]) {
    this.#pty = terminalOf(160, argv);
    this.#pty.onData((text) => {
      this.screen += text;
    });
    this.ended = new Promise((resolve) => this.#pty.onExit(({ exitCode }) => resolve(exitCode)));
  }

  press(keys: string): void {
    this.#pty.write(keys);
  }

  shows(words: RegExp): Promise<void> {
    return expect.poll(() => this.screen, { timeout: 40_000 }).toMatch(words);
  }
}
/** A terminal of so many columns, with the command in it. */
function terminalOf(cols: number, argv: readonly string[]): IPty {
  return spawnPty(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), ...argv], {
    cols,
    rows: 40,
    cwd: home.folder,
    env: { PATH: '/nowhere', HOME: home.folder, TERM: 'xterm' },
  });
}
const ctrlC = '\u0003';
const demo = async (): Promise<{ generation: number; created_at_ms: number }> =>
  JSON.parse((await home.run(['status', 'demo', '--json'])).stdout).deployments[0];
const generation = async (): Promise<number> => (await demo()).generation;

describe('a deploy that ends running jobs', () => {
  it('asks for --yes where there is no terminal, and changes nothing', async () => {
    write('demo', 4096);
    const { code, stderr } = await home.run(['deploy', 'demo.yaml']);
    expect({ code, stderr }).toEqual({
      code: 2,
      stderr: expect.stringMatching(/will be replaced[\s\S]*--yes/),
    });
    expect(await generation()).toBe(1);
    const all = await home.run(['stop', '--all']);
    expect({ code: all.code, stderr: all.stderr }).toEqual({
      code: 2,
      stderr: expect.stringContaining('E_CONFIRM'),
    });
  }, 60_000);

  it('holds nobody up while it asks, and Ctrl-C at the question changes nothing', async () => {
    const asked = new Typed('deploy', 'demo.yaml');
    await asked.shows(/will be replaced\. Go on\? \[y\/N\]/);
    const lock = join(home.folder, '.hpcserve/local/deployments/demo/lock');
    expect(existsSync(lock)).toBe(false);
    asked.press(ctrlC);
    expect(await asked.ended).toBe(130);
    expect(asked.screen).toMatch(/nothing was changed \[E_INTERRUPTED\]/);
    expect(asked.screen).not.toMatch(/E_INTERNAL|stack trace/);
    expect(await generation()).toBe(1);
  }, 60_000);

  it('goes on after a yes', async () => {
    const before = await demo();
    const asked = new Typed('deploy', 'demo.yaml');
    await asked.shows(/Go on\? \[y\/N\]/);
    asked.press('y\r');
    expect(await asked.ended, asked.screen).toBe(0);
    expect(asked.screen).toMatch(/job \S+ submitted/);
    expect(await demo()).toMatchObject({ generation: 2, created_at_ms: before.created_at_ms });
  }, 90_000);
});

it('what cannot keep its promise says so, and asks', async () => {
  write('slow', 512, { workload: { rate_per_s: 1e5, input_tokens: 400, output_tokens: 100 } });
  const asked = new Typed('deploy', 'slow.yaml');
  await asked.shows(/cannot keep its promise \(see above\)\. Deploy it all the same\? \[y\/N\]/);
  expect(asked.screen).toMatch(/load \d+ %, \d+ % of requests within the SLO/);
  asked.press('n\r');
  expect(await asked.ended).toBe(130);
  expect((await home.run(['status', 'slow'])).code).toBe(9);
  const planned = await home.run(['plan', 'slow.yaml']);
  expect(planned.stderr).toMatch(/slow cannot keep its promise/);
}, 90_000);

it('a lock that is waited for says who holds it, and since when', async () => {
  const path = join(home.folder, '.hpcserve/local/deployments/demo/lock');
  const before = await demo();
  const lock = await FolderLock.acquire(path, aroundChange({ command: 'a test', timeout_ms: 5_000 }));
  const waiting = new Typed('stop', 'demo');
  try {
    await waiting.shows(/waiting: `a test` on \S+, process \d+, holds \S+lock, since \d\d:\d\d:\d\d/);
  } finally {
    lock.release();
  }
  expect(await waiting.ended, waiting.screen).toBe(0);
  const again = await home.run(['deploy', 'demo.yaml', '--timeout', '60s']);
  expect(again.code, again.stderr).toBe(0);
  // One that was stopped is as old as what was started then.
  expect((await demo()).created_at_ms).toBeGreaterThan(before.created_at_ms);
}, 90_000);

describe('Ctrl-C', () => {
  it.each([
    ['status', ['status', '--watch'], /demo/],
    ['logs', ['logs', 'demo', '--follow'], /agent/],
    ['top', ['top'], /demo/],
    ['chat', ['chat', 'demo', 'Hello', '--max-tokens', '3000'], /./],
  ])(
    'ends %s with 130, and says nothing of jobs',
    async (_name, argv, seen) => {
      const typed = new Typed(...argv);
      await typed.shows(seen);
      typed.press(ctrlC);
      expect(await typed.ended, typed.screen).toBe(130);
      expect(typed.screen).not.toMatch(/E_INTERNAL|stop NAME|stack trace/);
    },
    60_000,
  );
});

describe('a table on a terminal of 44 columns', () => {
  const sql = 'SELECT model, status, prompt_tokens, completion_tokens, engine, endpoint FROM requests';
  it.each<[string, string[], RegExp]>([
    ['keys', ['keys', 'list'], /^MADE \(UTC\) +\d/m],
    ['usage', ['usage', '--by', 'model,user,tier,endpoint'], /^ANSWER TOKENS +\d/m],
    ['usage in SQL', ['usage', 'sql', sql], /^completion_tokens +\d/m],
    ['backfill', ['backfill', '--report'], /device-hours/],
  ])(
    '%s: has no line that is wider',
    async (_name, argv, shown) => {
      const asked = await home.run(['chat', 'demo', 'Hello', '--max-tokens', '4']);
      expect(asked.code, asked.stderr).toBe(0);
      const pty = terminalOf(44, argv);
      let screen = '';
      pty.onData((text) => {
        screen += text;
      });
      const code = await new Promise((resolve) => pty.onExit(({ exitCode }) => resolve(exitCode)));
      const lines = screen.replaceAll(/\x1b\[[\d;?]*[a-zA-Z]|\r/g, '').split('\n');
      expect(code, screen).toBe(0);
      expect(lines.join('\n')).toMatch(shown);
      expect(lines.filter((line) => line.length > 44)).toEqual([]);
    },
    60_000,
  );
});

describe('mistakes', () => {
  it.each<[string, string[], number, RegExp]>([
    ['logs of a node that is not there', ['logs', 'demo', '--node', 'nope'], 9, /there are/],
    ['logs of a replica that is not there', ['logs', 'demo', '--unit', 'demo-1'], 9, /did you mean "demo-0"/],
    ['a URL without a scheme', ['chat', '--url', '127.0.0.1:4', 'demo', 'Hi'], 2, /begins with http/],
    ['a time in words', ['deploy', 'demo.yaml', '--time', '4 hours'], 2, /--time "4 hours" cannot be/],
    ['a model that nobody serves', ['chat', 'nope', 'Hi'], 9, /404[\s\S]*E_MODEL_UNKNOWN|E_MODEL_UNKNOWN/],
    ['a key that nobody made', ['keys', 'revoke', 'nope'], 9, /E_KEY_UNKNOWN/],
    ['more tokens than the context has', ['chat', 'demo', 'word '.repeat(20_000)], 2, /400/],
    ['a number that is none', ['chat', 'demo', 'Hi', '--seed', 'abc'], 2, /is invalid: it takes a number \[/],
    ['to forget what runs', ['forget', 'demo', '--yes'], 10, /stop demo/],
  ])(
    '%s',
    async (_what, argv, exit, words) => {
      const { code, stderr } = await home.run(argv);
      expect({ code, stderr }).toEqual({ code: exit, stderr: expect.stringMatching(words) });
    },
    60_000,
  );

  it('a key that is refused', async () => {
    const { code, stderr } = await home.run(['models'], { env: { HPCSERVE_API_KEY: 'hsk-wrong' } });
    expect({ code, stderr }).toEqual({ code: 12, stderr: expect.stringContaining('E_REQUEST_KEY') });
  });

  it('an alias that another deployment has as a name', async () => {
    write('second', 256, { aliases: ['demo'] });
    const { code, stderr } = await home.run(['deploy', 'second.yaml']);
    expect({ code, stderr }).toEqual({ code: 10, stderr: expect.stringContaining('E_MODEL_NAME_TAKEN') });
    expect((await home.run(['status', 'second'])).code).toBe(9);
  }, 60_000);
});

it('a draft of a site as JSON is one object; lines of the gateway’s log are called so', async () => {
  const draft = await home.run(['init', '--local', '--stdout', '--json']);
  expect(draft.code, draft.stderr).toBe(0);
  expect(JSON.parse(draft.stdout)).toMatchObject({
    site: 'local',
    text: expect.stringContaining('name: local'),
  });
  const logs = await home.run(['logs', '--gateway']);
  expect(logs.code, logs.stderr).toBe(0);
  expect(logs.stdout).toMatch(/^gateway {2}\S/m);
  expect(logs.stdout).not.toMatch(/^job /m);
});

it('a deployment that is stopped can be forgotten', async () => {
  expect((await home.run(['stop', 'demo'])).code).toBe(0);
  expect((await home.run(['status'])).stdout).toContain('demo');
  const { code, stderr } = await home.run(['forget', 'demo', '--yes']);
  expect(code, stderr).toBe(0);
  expect((await home.run(['status'])).stdout).not.toContain('demo');
  expect(existsSync(join(home.folder, '.hpcserve/local/deployments/demo'))).toBe(false);
}, 60_000);
