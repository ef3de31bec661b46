/**
 * Streams that outlive their replica: two node agents with native device workers, and a gateway before them. What
 * the client gets must be what it gets of an undisturbed run, wherever the replica is lost.
 */
import { join } from 'node:path';
import type OpenAI from 'openai';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { TokenJournal } from '../../gateway/relay/journal/token-journal.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { limit_ms, slow_device, start_ms } from '../agent/engine/test-backend.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const messages = [{ role: 'user' as const, content: 'Go on and on.' }];
type Body = Partial<OpenAI.ChatCompletionCreateParamsStreaming> & Record<string, unknown>;

let site: Site;
let gateway: SiteGateway;
let agents: RunningAgent[] = [];

beforeAll(async () => {
  site = await Site.open();
  const model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  startAgent = (launch = {}) =>
    site.start(
      [
        unitOf(
          { name: 'm', batch_invariant: true, max_sequences: 8 },
          { engine: 'native', model_path, context_tokens: 1024, kv_tokens: 8192 },
        ),
      ],
      launch,
      { HPCSERVE_DRAIN_S: '0' },
    );
  agents = await Promise.all([startAgent(), startAgent()]);
  gateway = await gatewayOf(site, { continue_ms: 20_000 });
});
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});
afterEach(() => {
  vi.restoreAllMocks();
});

let startAgent: (launch?: Partial<LaunchSpec>) => Promise<RunningAgent>;
/** Of answers that are disturbed: none may be over before its replica is gone. */
const paced = { emulated_step_ms: 10 };

/** The agent and the process behind a session. */
async function processOf(session_id: string): Promise<{ agent: RunningAgent; pid: number }> {
  // An agent writes down its sessions a moment after it announces them.
  return eventually(async () => {
    for (const agent of agents) {
      const session = (await agent.state())?.sessions.find((one) => one.session_id === session_id);
      if (session?.pid !== undefined) return { agent, pid: session.pid };
    }
    return undefined;
  }, `an agent to know the session ${session_id}`);
}

/** A stream as the official client reads it, and the bytes of it. */
async function read(
  body: Body,
  onChunk: (count: number, session_id: string) => Promise<void> = async () => {},
) {
  let raw: Promise<string> | undefined;
  let session_id = '';
  const client = gateway.client({
    fetch: async (url, init) => {
      const answer = await fetch(url as string, init as RequestInit);
      session_id = answer.headers.get('x-hpcserve-session') ?? '';
      const [mine, theirs] = answer.body!.tee();
      raw = new Response(mine).text();
      return new Response(theirs, answer);
    },
  });
  const choices = Array.from({ length: Number(body.n ?? 1) }, () => ({
    text: '',
    roles: 0,
    finish: [] as string[],
    logprobs: [] as unknown[],
  }));
  const identities = new Set<string>();
  let usage: OpenAI.CompletionUsage | undefined;
  let count = 0;
  const stream = await client.chat.completions.create({
    model: 'm',
    messages,
    stream_options: { include_usage: true },
    ...body,
    stream: true,
  });
  for await (const chunk of stream) {
    identities.add(`${chunk.id} ${chunk.created} ${chunk.model}`);
    if (chunk.usage) usage = chunk.usage;
    for (const { index, delta, finish_reason, logprobs } of chunk.choices) {
      const choice = choices[index]!;
      choice.text += delta.content ?? '';
      if (delta.role) choice.roles++;
      if (finish_reason) choice.finish.push(finish_reason);
      choice.logprobs.push(...(logprobs?.content ?? []));
    }
    await onChunk(++count, session_id);
  }
  const text = await raw!;
  expect(text.match(/data: \[DONE\]/g)).toHaveLength(1);
  expect(text).not.toContain('hpcserve_');
  expect(identities.size).toBe(1);
  expect(choices.every(({ roles, finish }) => roles === 1 && finish.length === 1)).toBe(true);
  const { prompt_tokens, completion_tokens, total_tokens } = usage!;
  return { choices, usage: { prompt_tokens, completion_tokens, total_tokens } };
}

const bothServe = (): Promise<void> => gateway.untilServing('m', 2, start_ms);

/** A slow device is as long at a part of it: enough to lose a replica in. */
const tokens = (count: number): number => (slow_device ? Math.ceil(count / 8) : count);
const long = { max_tokens: tokens(800), ignore_eos: true, seed: 42 };
const numbers = {
  type: 'json_schema',
  json_schema: {
    name: 'x',
    schema: {
      type: 'array',
      items: { type: 'integer', maximum: 99, minimum: 0 },
      minItems: tokens(200),
      maxItems: tokens(205),
    },
  },
};
const stopped = 'that ends at a stop string';
const cases: Record<string, Body> = {
  greedy: { ...long, temperature: 0 },
  sampled: { ...long, temperature: 1.1, frequency_penalty: 0.2 },
  'with log probabilities': { ...long, logprobs: true, top_logprobs: 2 },
  'bound to a JSON schema': { max_tokens: tokens(950), seed: 4, response_format: numbers as never },
  'with several choices': { ...long, max_tokens: tokens(600), n: 2 },
  // Filled in with what stands near the end of the sampled answer.
  [stopped]: { ...long, temperature: 1.1, frequency_penalty: 0.2 },
};
const corrupted = { ...long, user: 'corrupted' };

type Answers = Record<string, Awaited<ReturnType<typeof read>>>;
const undisturbed: Answers = {};

describe('native streams, when one device worker after the other is killed', () => {
  const disturbed: Answers = {};
  let other = '';

  beforeAll(async () => {
    await bothServe();
    const { [stopped]: last, ...others }: Record<string, Body> = { ...cases, corrupted, long };
    const reads = Object.entries(others).map(async ([name, body]) => {
      undisturbed[name] = await read(body);
    });
    await Promise.all(reads);
    last!.stop = undisturbed.sampled!.choices[0]!.text.slice(-60, -40);
    undisturbed[stopped] = await read(last!);
    await replaceAgents();
    corruptContinuations();
    const bodies = Object.entries({ ...cases, corrupted });
    const sessions = (await gateway.serving()).map(({ session_id }) => session_id);
    const pids = new Map(
      await Promise.all(sessions.map(async (id) => [id, (await processOf(id)).pid] as const)),
    );
    const counts = new Map<string, number>();
    const places = new Set<string>();
    const chunks = (): number => [...counts.values()].reduce((sum, count) => sum + count, 0);
    const all = Promise.all(
      bodies.map(async ([name, body]) => {
        disturbed[name] = await read(body, async (count, session_id) => {
          counts.set(name, count);
          places.add(session_id);
        });
      }),
    );
    await eventually(() => counts.size === bodies.length, 'all streams to flow');
    // One replica may have all of them: a fuller batch is preferred.
    const first = [...places][0]!;
    process.kill(pids.get(first)!, 'SIGKILL');
    await eventually(async () => (await gateway.continuations()) > 0, 'a stream to go on');
    const before = chunks();
    await eventually(() => chunks() > before + bodies.length, 'streams to move on');
    process.kill(pids.get(sessions.find((id) => id !== first)!)!, 'SIGKILL');
    await all;
    other = disturbed.corrupted!.choices[0]!.text;
  }, limit_ms(240_000));

  it('each of them was broken', () => {
    const moved = gateway.logged.filter((line) => line.includes('goes on with the stream'));
    const requests = new Set(moved.map((line) => (JSON.parse(line) as { request_id: string }).request_id));
    expect(requests.size).toBe(Object.keys(cases).length + 1);
    expect(moved.length).toBeGreaterThan(requests.size);
  });

  it.each(Object.keys(cases))('one %s is the undisturbed one', (name) => {
    expect(disturbed[name]).toEqual(undisturbed[name]);
  });

  it('one that ends at a stop string ends there', () => {
    expect(disturbed[stopped]!.choices[0]!.finish).toEqual(['stop']);
  });

  it('one that went on from other tokens is seen to differ', () => {
    expect(other.length).toBeGreaterThan(tokens(100));
    expect(other).not.toBe(undisturbed.corrupted!.choices[0]!.text);
  });
});

/** The same two replicas, paced. */
async function replaceAgents(): Promise<void> {
  await Promise.all(agents.map((agent) => agent.kill()));
  await eventually(async () => (await gateway.serving()).length === 0, 'replicas to be gone');
  agents = await Promise.all([startAgent(paced), startAgent(paced)]);
  await bothServe();
}

/** Streams of the user `corrupted` are continued from a last token that is not the one the client has. */
function corruptContinuations(): void {
  const original = TokenJournal.prototype.continued;
  vi.spyOn(TokenJournal.prototype, 'continued').mockImplementation(async function (
    this: TokenJournal,
    parsed,
  ) {
    const request = await original.call(this, parsed);
    if (typeof request === 'string' || !parsed.scan.bytes.includes('"user":"corrupted"')) return request;
    const whole = Buffer.concat([...request.body]).toString();
    const altered = whole.replace(/("token_ids":\[[\d,]*?)(\d+)\]/, (_, before, id) => {
      return `${before}${Number(id) === 100 ? 101 : 100}]`;
    });
    expect(altered).not.toBe(whole);
    return { body: [Buffer.from(altered)] };
  });
}

describe('a native stream whose node agent', () => {
  it(
    'is told to stop is handed over with an event',
    async () => {
      await bothServe();
      const disturbed = await read(long, async (count, session_id) => {
        if (count === 5) (await processOf(session_id)).agent.process.kill('SIGTERM');
      });
      expect(disturbed).toEqual(undisturbed.long);
      expect(gateway.logged.some((line) => line.includes('ends before this answer'))).toBe(true);
      agents.push(await startAgent(paced));
    },
    limit_ms(90_000),
  );

  it(
    'is killed goes on elsewhere',
    async () => {
      await bothServe();
      const before = await gateway.continuations();
      const disturbed = await read(long, async (count, session_id) => {
        if (count === 5) (await processOf(session_id)).agent.process.kill('SIGKILL');
      });
      expect(disturbed).toEqual(undisturbed.long);
      expect(await gateway.continuations()).toBe(before + 1);
    },
    limit_ms(90_000),
  );
});
