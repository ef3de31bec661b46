/** A real vLLM behind a real agent: what heartbeats say of its KV cache is what it finds there. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ResidentBlocks } from '../../../solver/routing/resident-blocks.ts';
import { tokenHashes } from '../../../solver/routing/token-blocks.ts';
import type { Heartbeat } from '../../../spec/agent-state.ts';
import { kvBlockNewsSchema, kvChange_bytes } from '../../../spec/kv-blocks.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths, headers } from '../../../spec/wire.ts';
import { realVllm, vllm_ready_ms } from '../../engines/vllm.ts';
import { Site } from '../support.ts';

const { vllm, lacking } = realVllm();
/** Its cache has so many blocks: three prompts of 1,000 tokens with blocks of 128, and a bit. */
const blocks = 30;
const told_ms = 30_000;

describe.skipIf(lacking !== '')(`vLLM${lacking}`, () => {
  let site: Site;
  let record: SessionRecord;
  const resident = new ResidentBlocks(1000);
  let heard: Heartbeat | undefined;
  let watching: Promise<void> | undefined;
  let leaving = false;

  beforeAll(async () => {
    site = await Site.open();
    const folder = vllm!.model(join(site.folder, 'tiny'));
    const engine_args = ['--enforce-eager', '--num-gpu-blocks-override', String(blocks)];
    await site.start([vllm!.unit('one', folder, { engine_args })], vllm!.launch);
    record = await site.serving('one', vllm_ready_ms);
    watching = watch().catch((error: Error) => {
      if (!leaving) throw error;
    });
  }, vllm_ready_ms + 60_000);

  afterAll(async () => {
    leaving = true;
    await site?.[Symbol.asyncDispose]();
    await watching;
  }, 60_000);

  /** As a gateway does. */
  async function watch(): Promise<void> {
    const { body } = await site.pool(record).request({ method: 'GET', path: agentPaths.watch });
    let rest = '';
    for await (const chunk of body) {
      rest += String(chunk);
      const lines = rest.split('\n');
      rest = lines.pop()!;
      for (const line of lines) take(JSON.parse(line) as Heartbeat);
    }
  }

  function take(heartbeat: Heartbeat): void {
    heard = heartbeat;
    if (heartbeat.kv_blocks === undefined) return;
    const { reset, over, block_tokens, changes } = kvBlockNewsSchema.parse(heartbeat.kv_blocks);
    if (over) resident.end();
    if (reset) resident.reset(block_tokens);
    const bytes = Buffer.from(changes, 'base64');
    for (let at = 0; at < bytes.length; at += kvChange_bytes)
      resident.change(bytes.readUIntBE(at, kvChange_bytes));
  }

  /** A byte is a token. */
  async function ask(prompt: string): Promise<{ ids: number[]; cached_tokens: number }> {
    const answer = await site.pool(record).request({
      method: 'POST',
      path: '/v1/completions',
      headers: { 'content-type': 'application/json', [headers.model]: 'one' },
      body: JSON.stringify({ model: 'one', prompt, max_tokens: 2, return_token_ids: true }),
    });
    const text = await answer.body.text();
    expect(answer.statusCode, text).toBe(200);
    const { choices, usage } = JSON.parse(text);
    return {
      ids: choices[0].prompt_token_ids,
      cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? Number.NaN,
    };
  }

  async function until(holds: () => boolean): Promise<void> {
    for (const end_ms = performance.now() + told_ms; !holds(); await delay(100))
      if (performance.now() > end_ms) throw new Error(`not told: ${JSON.stringify(heard)}`);
  }

  const promptOf = (kind: string): string => `${kind} `.repeat(500).slice(0, 1000);
  const heldOf = (ids: readonly number[]): number =>
    resident.told ? resident.tokensOf(tokenHashes(ids, resident.block_tokens), ids.length) : 0;

  test('tells the blocks of a prompt, finds just these again, and takes back what it gives up', async () => {
    const first = await ask(promptOf('a'));
    expect(first.cached_tokens).toBe(0);
    const whole = (ids: readonly number[]): number =>
      Math.floor(ids.length / resident.block_tokens) * resident.block_tokens;
    await until(() => resident.told && heldOf(first.ids) === whole(first.ids));
    expect(heldOf(first.ids)).toBeGreaterThan(500);
    expect((await ask(promptOf('a'))).cached_tokens).toBe(heldOf(first.ids));
    for (const kind of ['b', 'c', 'd', 'e', 'f', 'g']) await ask(promptOf(kind));
    await until(() => heldOf(first.ids) === 0);
    expect((await ask(promptOf('a'))).cached_tokens).toBe(0);
  });

  test('counts what it was asked for and what it found', async () => {
    await until(() => (heard?.models[0]?.prefix_cache?.found_tokens ?? 0) > 0);
    const { queried_tokens, found_tokens } = heard!.models[0]!.prefix_cache!;
    expect(queried_tokens).toBeGreaterThan(found_tokens);
  });

  test('publishes at a socket that nobody else can reach', async () => {
    const folder = join(site.folder, 'run');
    const paths = (await readdir(folder, { recursive: true })).filter((path) => path.endsWith('kv.sock'));
    expect(paths).toHaveLength(1);
    const { mode } = await stat(join(folder, paths[0]!, '..'));
    expect(mode & 0o077).toBe(0);
  });
});
