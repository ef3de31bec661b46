/**
 * OpenAI's Python client against the same gateway. It comes from PyPI into a cache folder; where neither has it, the
 * suite cannot run.
 */
import { execFile, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { openStage, type Stage } from './support.ts';

const python = process.env.HPCSERVE_TEST_PYTHON ?? 'python3';
const program = fileURLToPath(new URL('client.py', import.meta.url));
const { folder, lacking } = install();
const checks = [
  'models',
  'chat_completion',
  'stream',
  'stream_logprobs',
  'completions_logprobs_stream',
  'stream_helper',
  'stream_left_early',
  'structured_output',
  'tools',
  'messages_go_back',
  'image',
  'responses',
  'reasoning',
  'completions',
  'embeddings',
  'errors',
  'asynchronous',
];

/** The folder with the client, from the cache or from PyPI; or what is lacking. */
function install(): { folder: string; lacking: string } {
  const cache = join(packageRoot, 'node_modules/.cache/hpcserve');
  const target = join(cache, 'python-openai');
  const works = (path: string) =>
    spawnSync(python, ['-c', 'import openai'], { env: { ...process.env, PYTHONPATH: path } }).status === 0;
  if (existsSync(target) && works(target)) return { folder: target, lacking: '' };
  mkdirSync(cache, { recursive: true });
  const fresh = mkdtempSync(join(cache, 'openai-'));
  const options = ['--quiet', '--timeout', '5', '--retries', '0', '--target', fresh];
  const pip = spawnSync(python, ['-m', 'pip', 'install', ...options, 'openai>=2,<4'], {
    encoding: 'utf8',
    timeout: 90_000,
  });
  if (pip.status === 0 && works(fresh)) {
    rmSync(target, { recursive: true, force: true });
    renameSync(fresh, target);
    return { folder: target, lacking: '' };
  }
  rmSync(fresh, { recursive: true, force: true });
  const reason = pip.error?.message ?? pip.stderr?.trim().split('\n').at(-1) ?? '';
  return { folder: '', lacking: ` [skipped: pip has no openai: ${reason.slice(0, 200)}]` };
}

describe.skipIf(lacking !== '')(`the Python client${lacking}`, () => {
  let stage: Stage;
  const outcomes = new Map<string, string | null>();
  let version = '';
  beforeAll(async () => {
    stage = await openStage();
    const { stdout } = await promisify(execFile)(python, [program], {
      env: {
        PATH: process.env.PATH,
        PYTHONPATH: folder,
        OPENAI_BASE_URL: `${stage.url}/v1`,
        OPENAI_API_KEY: stage.key,
      },
      timeout: 90_000,
    });
    for (const line of stdout.trim().split('\n')) {
      const said = JSON.parse(line) as { name?: string; failed?: string | null; version?: string };
      if (said.name !== undefined) outcomes.set(said.name, said.failed ?? null);
      else version = said.version!;
    }
  }, 150_000);
  afterAll(() => stage?.[Symbol.asyncDispose]());

  it.each(checks)('%s', (name) => {
    expect(outcomes.get(name)).toBeNull();
  });

  it('ran every check of its program', () => {
    expect([...outcomes.keys()]).toEqual(checks);
    expect(version).toMatch(/^[23]\./);
  });
});
