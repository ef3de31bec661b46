/** Batches of a gateway that is killed (SIGKILL) in the middle of them, and started again on its folder. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';
import type { Batch } from 'openai/resources/batches';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import type { UsageAnswer } from '../../spec/usage.ts';
import { Site, unitOf } from '../agent/support.ts';
import { GatewayProcess } from '../gateway/gateway-process.ts';
import { testConfig } from '../gateway/support.ts';
import { eventually } from '../mesh/support.ts';

const requests = 200;
/** So many results may be lost: those that are not saved yet, and what is asked at a time. */
const lost_max = 64 + 16;

let site: Site;
let gateway: GatewayProcess;
let client: OpenAI;
let key: string;

beforeAll(async () => {
  site = await Site.open();
  mkdirSync(join(site.folder, 'deployments'), { recursive: true });
  const model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  await site.start(
    [
      unitOf(
        { name: 'm', max_sequences: 8 },
        { engine: 'native', model_path, context_tokens: 512, kv_tokens: 8192 },
      ),
    ],
    { tier: 'scavenger', emulated_step_ms: 5 },
  );
  await site.serving('m', 45_000);
}, 90_000);
afterAll(() => site?.[Symbol.asyncDispose]());

beforeEach(async () => {
  const endpoint = await start();
  ({ key } = await gateway.newKey(endpoint));
  client = clientOf(endpoint.url);
});
afterEach(() => gateway?.end('SIGKILL'));

async function start() {
  const { folder, provider, provider_key_file, mesh_folder } = site;
  const own = { site: 'local', provider: provider.name, provider_key_file, mesh_folder };
  gateway = new GatewayProcess(testConfig(folder, own));
  return gateway.listening();
}

function clientOf(url: string): OpenAI {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
}

async function begin(ids: readonly string[]): Promise<Batch> {
  const endpoint = '/v1/chat/completions';
  const lines = ids.map((custom_id) => {
    const body = { model: 'm', messages: [{ role: 'user', content: custom_id }], max_tokens: 16 };
    return JSON.stringify({ custom_id, method: 'POST', url: endpoint, body });
  });
  const file = await toFile(Buffer.from(lines.join('\n')), 'in.jsonl');
  const { id } = await client.files.create({ file, purpose: 'batch' });
  return client.batches.create({ input_file_id: id, endpoint, completion_window: '24h' });
}

const answered = (batch: Batch, count: number) =>
  eventually(
    async () => (await client.batches.retrieve(batch.id)).request_counts!.completed >= count,
    'results',
    40_000,
  );

async function killAndStartAgain() {
  await gateway.end('SIGKILL');
  const endpoint = await start();
  client = clientOf(endpoint.url);
  return endpoint;
}

const ended = (batch: Batch) =>
  eventually(
    async () => {
      const now = await client.batches.retrieve(batch.id);
      return ['completed', 'failed', 'cancelled', 'expired'].includes(now.status) ? now : undefined;
    },
    'the batch to end',
    60_000,
  );

it('goes on from what was kept, and answers each request once', async () => {
  const ids = Array.from({ length: requests }, (_, at) => `r${at}`);
  const made = await begin(ids);
  await answered(made, 64);
  const endpoint = await killAndStartAgain();
  // What was answered before is not asked again: it is there from the start.
  await answered(made, 64);
  const batch = await ended(made);
  expect(batch).toMatchObject({
    status: 'completed',
    request_counts: { total: requests, completed: requests, failed: 0 },
  });
  const text = await (await client.files.content(batch.output_file_id!)).text();
  const lines = text.trimEnd().split('\n');
  expect(lines.map((line) => (JSON.parse(line) as { custom_id: string }).custom_id)).toEqual(ids);
  // The ledger knows of all that was computed, by either gateway.
  const usage = (await (
    await gateway.admin(endpoint, '/hpcserve/v1/usage?group_by=model')
  ).json()) as UsageAnswer;
  const computed = usage.usage.reduce((sum, row) => sum + row.requests, 0);
  expect(computed).toBeGreaterThanOrEqual(requests);
  expect(computed).toBeLessThanOrEqual(requests + lost_max);
}, 150_000);

it('stays cancelled where it was', async () => {
  const made = await begin(Array.from({ length: requests }, (_, at) => `c${at}`));
  await answered(made, 1);
  expect((await client.batches.cancel(made.id)).status).toBe('cancelling');
  await killAndStartAgain();
  const batch = await ended(made);
  expect(batch.status).toBe('cancelled');
  expect(batch.cancelling_at).toEqual(expect.any(Number));
  expect(batch.request_counts!.completed).toBeLessThan(requests);
}, 120_000);
