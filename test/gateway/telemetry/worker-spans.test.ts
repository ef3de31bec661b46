/** The tree of one request over a gateway, a node agent and a device worker of their own: what each has of its time. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { Site, unitOf } from '../../agent/support.ts';
import { until } from '../support.ts';
import { gatewayOf, type SiteGateway } from '../with-agents.ts';
import { attributesOf, OtlpReceiver, type ReceivedSpan } from './otlp-receiver.ts';

let site: Site;
let gateway: SiteGateway;
let receiver: OtlpReceiver;

beforeAll(async () => {
  receiver = await OtlpReceiver.start();
  site = await Site.open();
  const model_path = join(site.folder, 'toy.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  await site.start([unitOf({ name: 'toy' }, { engine: 'native', model_path })]);
  gateway = await gatewayOf(site, { export_ms: 50 }, { otel: { endpoint: receiver.endpoint, sample: 1 } });
  await gateway.untilServing('toy', 1, 30_000);
}, 60_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
  await receiver?.stop();
  expect(receiver.refused).toEqual([]);
});

const durationOf = ({ startTimeUnixNano, endTimeUnixNano }: ReceivedSpan): number =>
  Number(BigInt(endTimeUnixNano) - BigInt(startTimeUnixNano)) / 1e6;

it.each([true, false])('streamed: %s', async (stream) => {
  receiver.spans.length = 0;
  const asked = { model: 'toy', max_tokens: 24, messages: [{ role: 'user' as const, content: 'Hello' }] };
  const client = gateway.client();
  if (stream) for await (const _ of await client.chat.completions.create({ ...asked, stream }));
  else await client.chat.completions.create({ ...asked, stream });
  await until(() => receiver.spans.length === 4, 'four spans');
  const [request, attempt, serve, compute] = ['chat toy 2', 'chat toy 3', 'serve toy 2', 'compute toy 1'].map(
    (wanted) => receiver.spans.find(({ name, kind }) => `${name} ${kind}` === wanted),
  );
  const parents = [attempt, serve, compute].map((span) => span!.parentSpanId);
  expect(parents).toEqual([request, attempt, serve].map((span) => span!.spanId));
  expect(durationOf(compute!)).toBeLessThanOrEqual(durationOf(serve!));
  expect(durationOf(serve!)).toBeLessThanOrEqual(durationOf(attempt!));
  expect(new Set(receiver.spans.map(({ traceId }) => traceId)).size).toBe(1);
  expect(compute!.events.map(({ name }) => name)).toEqual(['queue', 'prefill', 'decode']);
  const [queue, prefill, decode] = compute!.events.map(({ attributes }) =>
    Number(attributesOf(attributes)['hpcserve.duration_ms']),
  );
  expect(Math.min(queue!, prefill!, decode!)).toBeGreaterThan(0);
  // Its times are of one clock: together they are the span, which is no longer than what it is a part of.
  expect(queue! + prefill! + decode!).toBeCloseTo(durationOf(compute!), 1);
  expect(durationOf(compute!)).toBeLessThanOrEqual(durationOf(request!));
  // Each event is where the one before has ended.
  const [first, second] = compute!.events.map(({ timeUnixNano }) => BigInt(timeUnixNano));
  expect(Number(second! - first!) / 1e6).toBeCloseTo(queue!, 1);
});
