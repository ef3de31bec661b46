/** Keys of several groups before one native replica: nobody learns from its prefix cache what others have asked. */
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cacheScopeOf } from '../../../gateway/keys/cache-scope.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { headers } from '../../../spec/wire.ts';
import { Site, unitOf } from '../../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../with-agents.ts';

let site: Site;
let gateway: SiteGateway;

beforeAll(async () => {
  site = await Site.open();
  const model_path = join(site.folder, 'toy.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  await site.start([unitOf({ name: 'toy' }, { engine: 'native', model_path })]);
  gateway = await gatewayOf(site);
  await gateway.untilServing('toy', 1, 30_000);
}, 60_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

async function keyOf(name: string, cache_group?: string): Promise<string> {
  const body = { name, ...(cache_group === undefined ? {} : { settings: { cache_group } }) };
  const made = await gateway.admin('/hpcserve/v1/keys', { method: 'POST', body: JSON.stringify(body) });
  return ((await made.json()) as { key: string }).key;
}

/** Tokens of a prompt that were not computed, as its client is told. */
async function cachedTokens(
  apiKey: string,
  content: string,
  more: Record<string, string> = {},
): Promise<number> {
  const client = new OpenAI({ baseURL: `${gateway.url}/v1`, apiKey, maxRetries: 0, defaultHeaders: more });
  const { usage } = await client.chat.completions.create({
    model: 'toy',
    max_tokens: 1,
    messages: [{ role: 'user', content }],
  });
  return usage!.prompt_tokens_details!.cached_tokens!;
}

const prompts = [1, 2, 3].map(
  (at) => `Prompt ${at}: ${'a secret that is long enough to fill some blocks, '.repeat(2)}`,
);

it('a prompt is found again by keys of the same group, and by no others', async () => {
  const [one, same, other] = [await keyOf('one', 'a'), await keyOf('same', 'a'), await keyOf('other', 'b')];
  const [alone, alsoAlone] = [await keyOf('alone', 'private'), await keyOf('also', 'private')];
  const [anybody, anybodyElse] = [await keyOf('anybody'), await keyOf('else')];
  const [secret] = prompts as [string];
  // In one order only is each of them the first of its group.
  const firsts: number[] = [];
  for (const key of [one, other, alone, alsoAlone, anybody]) firsts.push(await cachedTokens(key, secret));
  expect(firsts).toEqual([0, 0, 0, 0, 0]);
  for (const key of [one, same, other, alone, alsoAlone, anybody, anybodyElse])
    expect(await cachedTokens(key, secret)).toBeGreaterThan(16);
}, 60_000);

it('a client cannot name a group itself', async () => {
  const [insider, outsider] = [await keyOf('insider', 'a'), await keyOf('outsider')];
  const [, secret] = prompts as [string, string];
  await cachedTokens(insider, secret);
  const scope = cacheScopeOf({ id: 'key_x', settings: { cache_group: 'a' } })!;
  // What the chat template writes before every message is the same for all of its own group.
  expect(await cachedTokens(outsider, secret, { [headers.cache_scope]: scope })).toBeLessThan(16);
}, 60_000);

it('a key that changes its group leaves what it knew', async () => {
  const made = await gateway.admin('/hpcserve/v1/keys', {
    method: 'POST',
    body: JSON.stringify({ name: 'moving', settings: { cache_group: 'before' } }),
  });
  const { key, id } = (await made.json()) as { key: string; id: string };
  const [, , secret] = prompts as [string, string, string];
  await cachedTokens(key, secret);
  expect(await cachedTokens(key, secret)).toBeGreaterThan(16);
  const changed = await gateway.admin(`/hpcserve/v1/keys/${id}`, {
    method: 'PATCH',
    body: JSON.stringify({ cache_group: 'after' }),
  });
  expect(changed.status).toBe(200);
  expect(await cachedTokens(key, secret)).toBe(0);
}, 60_000);
