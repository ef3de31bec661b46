/** One trace a request, as a receiver of OpenTelemetry gets it; and none where nobody wants one. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Tracing } from '../../../gateway/telemetry/tracing.ts';
import {
  chatAnswer,
  chunkEvent,
  doneEvent,
  json,
  type Stage,
  startStage,
  until,
  usageEvent,
} from '../support.ts';
import { attributesOf, OtlpReceiver, type ReceivedSpan } from './otlp-receiver.ts';

const path = '/v1/chat/completions';
const secret = 'the-prompt-that-nobody-else-may-read';
const chat = { model: 'tiny', max_tokens: 9, messages: [{ role: 'user', content: secret }] };
const trace_id = '4bf92f3577b34da6a3ce929d0e0e4736';
const client_span = '00f067aa0ba902b7';
const traceparent = `00-${trace_id}-${client_span}-01`;

let receiver: OtlpReceiver;
let stage: Stage;
async function staged(sample = 1): Promise<void> {
  stage = await startStage({ export_ms: 50 }, { otel: { endpoint: receiver.endpoint, sample } });
}
beforeEach(async () => {
  receiver = await OtlpReceiver.start();
});
afterEach(async () => {
  await stage?.close();
  await receiver.stop();
  expect(receiver.refused).toEqual([]);
});

const named = (name: string, kind: number): ReceivedSpan[] =>
  receiver.spans.filter((span) => span.name === name && span.kind === kind);
const server = (): ReceivedSpan[] => named('chat tiny', 2);
const attempts = (): ReceivedSpan[] => named('chat tiny', 3);
const computed = (): ReceivedSpan[] => named('compute tiny', 1);
const traced = (count = 1): Promise<void> => until(() => server().length === count, `${count} trace(s)`);

describe('a request', () => {
  it('is a span with its attempt below it, in the trace of its client, and holds no word of it', async () => {
    await staged();
    const replica = await stage.session(json(chatAnswer));
    expect((await stage.post(path, chat, { traceparent })).status).toBe(200);
    await traced();
    const [request] = server();
    const [attempt] = attempts();
    expect(request).toMatchObject({ traceId: trace_id, parentSpanId: client_span, status: {} });
    expect(attempt).toMatchObject({ traceId: trace_id, parentSpanId: request!.spanId, status: {} });
    // The replica is told of the attempt, not of the client's span.
    expect(replica.requests[0]!.headers.traceparent).toBe(`00-${trace_id}-${attempt!.spanId}-01`);
    expect(attributesOf(request!.attributes)).toMatchObject({
      'gen_ai.operation.name': 'chat',
      'gen_ai.provider.name': 'hpcserve',
      'gen_ai.request.model': 'tiny',
      'gen_ai.request.max_tokens': 9,
      'gen_ai.response.model': 'tiny',
      'gen_ai.response.finish_reasons': ['stop'],
      'gen_ai.usage.input_tokens': 5,
      'gen_ai.usage.output_tokens': 7,
      'http.response.status_code': 200,
      'hpcserve.attempts': 1,
    });
    expect(attributesOf(attempt!.attributes)).toMatchObject({
      'server.address': 'node1',
      'hpcserve.result': 'answered',
      'hpcserve.session': replica.own.id,
      'hpcserve.job_id': '4711',
    });
    expect(receiver.resources[0]).toMatchObject({
      'service.name': 'hpcserve-gateway',
      'hpcserve.site': 'test',
    });
    const [begin, inner, innerEnd, end] = [
      request!.startTimeUnixNano,
      attempt!.startTimeUnixNano,
      attempt!.endTimeUnixNano,
      request!.endTimeUnixNano,
    ].map(BigInt);
    expect(begin! <= inner! && inner! <= innerEnd! && innerEnd! <= end!).toBe(true);
    for (const body of receiver.bodies) expect(body).not.toMatch(new RegExp(`${secret}|${stage.key}|h.llo`));
  });

  it('has a span for each replica that was asked', async () => {
    await staged();
    const bad = await stage.session((_request, response) => void response.destroy(), { node: 'bad' });
    await stage.session(json(chatAnswer), { node: 'good' });
    // The fullest batch that it still fits in is asked first.
    bad.load = { running: 5 };
    bad.beat();
    const isKnown = async (): Promise<boolean> =>
      (await (await stage.admin('/hpcserve/v1/table')).text()).includes('"running":5');
    await until(isKnown, 'its load to be known');
    expect((await stage.post(path, chat)).status).toBe(200);
    await traced();
    expect(attempts().every(({ parentSpanId }) => parentSpanId === server()[0]!.spanId)).toBe(true);
    expect(attempts().map((span) => attributesOf(span.attributes))).toMatchObject([
      { 'server.address': 'bad', 'hpcserve.attempt': 1, 'hpcserve.result': 'lost' },
      { 'server.address': 'good', 'hpcserve.attempt': 2, 'hpcserve.result': 'answered' },
    ]);
  });

  it('that fails says why', async () => {
    await staged();
    await stage.session((_request, response) => void response.destroy());
    expect((await stage.post(path, chat)).status).toBe(502);
    await traced();
    expect(server()[0]!.status).toMatchObject({ code: 2, message: 'E_REPLICA_FAILED' });
    expect(attributesOf(server()[0]!.attributes)).toMatchObject({ 'error.type': 'E_REPLICA_FAILED' });
  });

  it('whose client goes away ends with its attempt given up', async () => {
    await staged();
    let asked = false;
    await stage.session(() => {
      asked = true;
    });
    const abort = new AbortController();
    const answer = fetch(stage.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${stage.key}`, 'content-type': 'application/json' },
      body: JSON.stringify(chat),
      signal: abort.signal,
    });
    await until(() => asked, 'the replica to have it');
    abort.abort();
    await answer.catch(() => undefined);
    await traced();
    expect(attributesOf(attempts()[0]!.attributes)).toMatchObject({ 'hpcserve.result': 'given_up' });
    expect(attributesOf(server()[0]!.attributes)).toMatchObject({ 'http.response.status_code': 499 });
  });
});

describe('what a node says of its time', () => {
  const phases = (span: ReceivedSpan) =>
    span.events.map(({ name, attributes }) => [name, attributesOf(attributes)['hpcserve.duration_ms']]);

  it('is a span below the attempt: of an answer in one piece, from its head', async () => {
    await staged();
    const replica = await stage.session((request, response) => {
      expect(request.headers['x-hpcserve-timings']).toBe('1');
      response.setHeader('x-hpcserve-timings', 'queue;dur=1.5, prefill;dur=2, decode;dur=0.25');
      return json(chatAnswer)(request, response);
    });
    const answer = await stage.post(path, chat);
    expect(answer.headers.get('x-hpcserve-timings')).toBeNull();
    await until(() => computed().length === 1, 'the span of the worker');
    const [span] = computed();
    expect(span!.parentSpanId).toBe(attempts()[0]!.spanId);
    expect(phases(span!)).toEqual([
      ['queue', 1.5],
      ['prefill', 2],
      ['decode', 0.25],
    ]);
    expect(attributesOf(span!.attributes)).toMatchObject({ 'hpcserve.session': replica.own.id });
  });

  it('comes behind a stream, as its trailer', async () => {
    await staged();
    await stage.session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream', trailer: 'x-hpcserve-timings' });
      for (const piece of [chunkEvent('a'), chunkEvent('b', 'stop'), usageEvent])
        await new Promise((resolve) => response.write(piece, resolve));
      response.addTrailers({ 'x-hpcserve-timings': 'queue;dur=0.5, prefill;dur=1, decode;dur=2' });
      response.end(doneEvent);
    });
    const answer = await stage.post(path, { ...chat, stream: true });
    expect(await answer.text()).toContain('[DONE]');
    await until(() => computed().length === 1, 'the span of the worker');
    expect(phases(computed()[0]!)).toEqual([
      ['queue', 0.5],
      ['prefill', 1],
      ['decode', 2],
    ]);
  });

  it('is the agent’s alone where the engine tells nothing', async () => {
    await staged();
    const wrapped = await stage.session(
      (request, response) => {
        response.setHeader('x-hpcserve-timings', 'agent;dur=0.125');
        return json(chatAnswer)(request, response);
      },
      { engine: 'vllm' },
    );
    await (await stage.post(path, chat)).text();
    await until(() => named('serve tiny', 2).length === 1, 'the span of the agent');
    expect(wrapped.requests[0]!.headers['x-hpcserve-timings']).toBe('1');
    expect(named('serve tiny', 2)[0]!.parentSpanId).toBe(attempts()[0]!.spanId);
    expect(computed()).toEqual([]);
  });

  it('is left out where it cannot be read', async () => {
    await staged();
    await stage.session(
      (request, response) => {
        response.setHeader('x-hpcserve-timings', 'queue;dur=-1');
        return json(chatAnswer)(request, response);
      },
      { node: 'second' },
    );
    await (await stage.post(path, chat)).text();
    await traced();
    expect([...computed(), ...named('serve tiny', 2)]).toEqual([]);
  });
});

describe('who wants no trace', () => {
  it('gets none: by the word of the client, and by the sample', async () => {
    await staged(0);
    const replica = await stage.session(json(chatAnswer));
    const unsampled = `00-${trace_id}-${client_span}-00`;
    await stage.post(path, chat, { traceparent: unsampled });
    await stage.post(path, chat);
    // Its client has decided, whatever the share.
    await stage.post(path, chat, { traceparent });
    await traced();
    expect(server()[0]!.traceId).toBe(trace_id);
    expect(receiver.spans).toHaveLength(2);
    // What is not traced here goes through as it came.
    expect(replica.requests[0]!.headers.traceparent).toBe(unsampled);
    expect(replica.requests[0]!.headers).not.toHaveProperty('x-hpcserve-timings');
    expect(replica.requests[1]!.headers).not.toHaveProperty('traceparent');
  });
});

describe('a receiver', () => {
  it('that is away holds up no request, and gets the spans when it is back', async () => {
    await staged();
    await stage.session(json(chatAnswer));
    receiver.status = 503;
    expect((await stage.post(path, chat)).status).toBe(200);
    await until(() => receiver.headers.length > 1, 'it to be asked twice');
    expect(stage.logged.filter((line) => line.includes('traces are not taken'))).toHaveLength(1);
    receiver.status = 200;
    await traced();
    expect(attempts()).toHaveLength(1);
  });

  it('that refuses spans is not sent them again', async () => {
    await staged();
    await stage.session(json(chatAnswer));
    receiver.status = 400;
    await stage.post(path, chat);
    await until(() => receiver.headers.length > 0, 'it to be asked');
    receiver.status = 200;
    await stage.post(path, chat);
    await traced();
    expect(receiver.spans).toHaveLength(2);
  });

  it('gets what waits when the gateway stops', async () => {
    stage = await startStage({ export_ms: 3_600_000 }, { otel: { endpoint: receiver.endpoint, sample: 1 } });
    await stage.session(json(chatAnswer));
    await stage.post(path, chat);
    await stage.close();
    expect(receiver.spans).toHaveLength(2);
  });

  it('is named by the variables of OpenTelemetry where the settings name none', async () => {
    const log = pino({ enabled: false });
    const open = (environment: Record<string, string | undefined>, endpoint?: string): Tracing | undefined =>
      Tracing.open({ settings: { endpoint }, environment, resource: {}, log });
    expect(open({})).toBeUndefined();
    expect(open({ OTEL_EXPORTER_OTLP_ENDPOINT: '' })).toBeUndefined();
    expect(open({ OTEL_SDK_DISABLED: 'true' }, 'http://127.0.0.1:1')).toBeUndefined();
    const asked: (string | undefined)[][] = [];
    const there = createServer((request, response) => {
      asked.push([request.url, request.headers.authorization]);
      response.end('{}');
    });
    await new Promise<void>((resolve) => there.listen(0, '127.0.0.1', resolve));
    const base = `http://127.0.0.1:${(there.address() as AddressInfo).port}`;
    try {
      const headers = { OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20token,x=y' };
      for (const environment of [
        { OTEL_EXPORTER_OTLP_ENDPOINT: `${base}/`, ...headers },
        { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${base}/own/path`, OTEL_EXPORTER_OTLP_ENDPOINT: base },
      ]) {
        const tracing = open(environment)!;
        const span = {
          trace_id,
          span_id: client_span,
          name: 'n',
          kind: 'server',
          start_ms: 1,
          end_ms: 2,
        } as const;
        tracing.add({ ...span, attributes: {} });
        await tracing.close();
      }
      expect(asked).toEqual([
        ['/v1/traces', 'Bearer token'],
        ['/own/path', undefined],
      ]);
    } finally {
      there.close();
    }
  });
});
