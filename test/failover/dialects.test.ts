/** Streams in other APIs than chats outlive their replica as those do: the client reads one answer to its end. */
import { join } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

let site: Site;
let gateway: SiteGateway;
let agents: RunningAgent[];

beforeAll(async () => {
  site = await Site.open();
  const model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  const unit = unitOf(
    { name: 'm', batch_invariant: true, max_sequences: 8 },
    { engine: 'native', model_path, context_tokens: 1024, kv_tokens: 8192 },
  );
  // None may be over before its replica is gone.
  const start = () => site.start([unit], { emulated_step_ms: 10 }, { HPCSERVE_DRAIN_S: '0' });
  agents = await Promise.all([start(), start()]);
  gateway = await gatewayOf(site, { continue_ms: 20_000 });
  await gateway.untilServing('m', 2, 45_000);
}, 90_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

type OnEvent = (count: number) => void;
const asked = { model: 'm', temperature: 0 } as const;
const input = 'Go on and on.';

/** Of the responses API: its text, as its events and as its last event tell it, and the types of events. */
async function response(onEvent: OnEvent) {
  const stream = await gateway
    .client()
    .responses.create({ ...asked, input, max_output_tokens: 400, stream: true });
  let [text, whole, count] = ['', '', 0];
  const types = new Set<string>();
  const numbers: number[] = [];
  for await (const event of stream) {
    types.add(event.type);
    numbers.push(event.sequence_number);
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (event.type === 'response.completed' || event.type === 'response.incomplete')
      whole = `${event.response.output_text} ${event.response.usage!.output_tokens}`;
    onEvent(++count);
  }
  expect(numbers).toEqual(numbers.map((_, at) => at));
  return { text, whole, types: [...types] };
}

/** Of the messages API. */
async function message(onEvent: OnEvent) {
  const client = new Anthropic({ baseURL: gateway.url, apiKey: gateway.key, maxRetries: 0 });
  const stream = client.messages.stream({
    ...asked,
    messages: [{ role: 'user', content: input }],
    max_tokens: 400,
  });
  let count = 0;
  stream.on('streamEvent', () => onEvent(++count));
  const { content, stop_reason, usage } = await stream.finalMessage();
  return { content, stop_reason, output_tokens: usage.output_tokens };
}

it('responses and messages, each told to its end while its replica is killed', async () => {
  const undisturbed = await Promise.all([response(() => {}), message(() => {})]);
  expect(undisturbed[0].text.length).toBeGreaterThan(400);
  const before = await gateway.continuations();
  const counts = [0, 0];
  const reads = Promise.all([
    response((count) => {
      counts[0] = count;
    }),
    message((count) => {
      counts[1] = count;
    }),
  ]);
  await eventually(() => counts.every((count) => count > 10), 'both streams to flow');
  // One replica has both: a fuller batch is preferred. The mesh tells of it a moment after they began.
  let busy: string | undefined;
  await eventually(async () => {
    const serving = await gateway.serving('m');
    busy = serving.find(({ models }) => models.some(({ running }) => running > 0))?.session_id;
    return busy !== undefined;
  }, 'the mesh to tell which replica has the streams');
  const states = await Promise.all(agents.map((agent) => agent.state()));
  const victim = states.flatMap((state) => state?.sessions ?? []).find((one) => one.session_id === busy);
  process.kill(victim!.pid!, 'SIGKILL');
  expect(await reads).toEqual(undisturbed);
  expect(await gateway.continuations()).toBeGreaterThan(before);
}, 120_000);
