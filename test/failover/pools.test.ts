/**
 * Prefill and decode pools: real agents and workers, and a gateway before them. Prompts are computed by one worker and
 * answers by another; what clients get is what one replica alone gives, and nothing is computed twice.
 */
import { mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { Client } from 'undici';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ContentHashCache } from '../../agent/memory/content-hashes.ts';
import { fileVersion } from '../../agent/memory/file-version.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { deviceReportSchema } from '../../spec/device-report.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import { cache_home, type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const prompt_tokens = 400;
const chunk_tokens = 64;
const answer_tokens = 40;
/** Of a replica that computes prompts: a prompt takes seven iterations, and a second. */
const prefill_step_ms = 150;
/** Of one that decodes: an answer takes two seconds and a half. */
const decode_step_ms = 60;

let site: Site;
let gateway: SiteGateway;
const paths = { model: '', other: '' };

interface Replica {
  agent: RunningAgent;
  session: string;
  /** Of its private sockets. */
  folder: string;
}
let started = 0;
const agents: Replica[] = [];

/** A node of a job of its own, once its worker serves. */
async function start(pool: PoolName | undefined, unit: Partial<UnitSpec> = {}, places = 4): Promise<Replica> {
  const folder = join(site.folder, `r${started++}`);
  mkdirSync(folder);
  const native = unitOf(
    { name: 'm', batch_invariant: true, max_sequences: places, prefill_chunk_tokens: chunk_tokens },
    { engine: 'native', model_path: paths.model, context_tokens: 1024, kv_tokens: 4096, pool, ...unit },
  );
  const emulated_step_ms = pool === 'prefill' ? prefill_step_ms : pool === 'decode' ? decode_step_ms : 1;
  const launch = { private_fabric: true as const, fabrics: [], emulated_step_ms, runtime_folder: folder };
  const agent = await site.start([native], launch, { HPCSERVE_DRAIN_S: '10' });
  const state = await agent.stateWhere(
    ({ sessions }) =>
      sessions.some(({ role, models }) => role === 'device-worker' && models[0]?.state === 'serving'),
    'an agent to serve',
    45_000,
  );
  const worker = state.sessions.find(({ role }) => role === 'device-worker')!;
  const replica = { agent, session: worker.session_id, folder };
  agents.push(replica);
  return replica;
}

/** Its worker, too: nobody says good-bye. */
async function kill({ agent, session }: Replica): Promise<void> {
  const pid = await agent.pidOf({ session_id: session });
  agent.process.kill('SIGKILL');
  process.kill(pid, 'SIGKILL');
  await agent.ended;
}

async function movesAt({ session }: Replica): Promise<MovesReport> {
  const told = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  const { report } = told.devices.find((device) => device.session_id === session)!;
  return deviceReportSchema.parse(report).moves!;
}

/** What a worker has computed since it started, as its own metrics say. */
async function computed({ folder }: Replica): Promise<{ prompt: number; generated: number; text: string }> {
  const found = readdirSync(folder, { recursive: true }).map(String);
  const socketPath = join(folder, found.find((path) => path.endsWith('worker.sock'))!);
  const client = new Client('http://worker', { socketPath });
  try {
    const text = await (await client.request({ method: 'GET', path: '/metrics' })).body.text();
    const read = (name: string): number =>
      Number(new RegExp(`^${name}\\{[^}]*\\} (\\d+)`, 'm').exec(text)?.[1] ?? 0);
    return {
      prompt: read('hpcserve_prompt_tokens_total'),
      generated: read('hpcserve_generated_tokens_total'),
      text,
    };
  } finally {
    await client.close();
  }
}

interface Asked {
  session: string;
  /** Resolves once so many events have come. */
  after(events: number): Promise<void>;
  text: Promise<string>;
}

const tokens = (count: number, first: number): number[] =>
  Array.from({ length: count }, (_, at) => (first + at * 7) % 200);

/** @param first makes prompts of their own: what is in a cache would be found there */
async function ask(first: number, change: Record<string, unknown> = {}): Promise<Asked> {
  const stream = change.stream !== false;
  const answer = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'm',
      prompt: tokens(prompt_tokens, first),
      max_tokens: answer_tokens,
      ignore_eos: true,
      temperature: 0,
      stream: true,
      ...change,
    }),
  });
  expect(answer.status, answer.ok ? '' : await answer.text()).toBe(200);
  let raw = '';
  let tell = (): void => undefined;
  const read = async (): Promise<string> => {
    for await (const part of answer.body!) {
      raw += Buffer.from(part).toString('utf8');
      tell();
    }
    expect(raw).not.toContain('hpcserve_');
    if (!stream) return (JSON.parse(raw) as { choices: { text: string }[] }).choices[0]!.text;
    expect(raw.match(/data: \[DONE\]/g)).toHaveLength(1);
    expect(/"error":.*/.exec(raw)?.[0]).toBeUndefined();
    const events = raw.split('\n\n').filter((event) => event.startsWith('data: {'));
    const chunks = events.map((event) => JSON.parse(event.slice(6)) as { choices: { text: string }[] });
    return chunks.map(({ choices }) => choices[0]?.text ?? '').join('');
  };
  const text = read();
  const after = (events: number): Promise<void> =>
    new Promise((resolve) => {
      tell = () => {
        if (raw.split('\n\n').length > events) resolve();
      };
      tell();
    });
  return { session: answer.headers.get('x-hpcserve-session')!, after, text };
}

async function whole(first: number, change: Record<string, unknown> = {}): Promise<string> {
  return (await ask(first, change)).text;
}

/** What one replica alone answers, by prompt. */
const alone = new Map<string, string>();
const seeded = { temperature: 1, seed: 7 };
const long = { prompt: tokens(900, 5) };

beforeAll(async () => {
  site = await Site.open();
  for (const [seed, name] of (['model', 'other'] as const).entries()) {
    paths[name] = join(site.folder, `${name}.gguf`);
    await synthesize({
      path: paths[name],
      shape: synthPresets['tiny-llama']!,
      quantization: 'F16',
      seed: seed + 1,
    });
  }
  gateway = await gatewayOf(site, { continue_ms: 20_000 });
  const one = await start(undefined);
  await gateway.untilServing('m', 1, 45_000);
  for (const first of [1, 2, 3, 4, 5, 6, 7, 8]) alone.set(String(first), await whole(first));
  alone.set('seeded', await whole(1, seeded));
  alone.set('long', await whole(0, long));
  expect(new Set(alone.values()).size).toBe(alone.size);
  await kill(one);
  const cache = new ContentHashCache(join(cache_home, 'hpcserve/tensors'));
  const version = fileVersion(paths.model, statSync(paths.model, { bigint: true }));
  await eventually(() => cache.read(version), 'the model to be hashed');
}, 120_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

/** Until the gateway knows these replicas of the model, and no others. */
async function serving(...replicas: Replica[]): Promise<void> {
  const wanted = replicas.map(({ session }) => session).sort();
  await eventually(async () => {
    const now = (await gateway.serving('m')).map(({ session_id }) => session_id).sort();
    return JSON.stringify(now) === JSON.stringify(wanted) || undefined;
  }, 'these replicas to serve');
}

/** Until answers go from one to the other: both have found the hash of their file, and each knows the other. */
async function handsOver(from: Replica, to: Replica): Promise<void> {
  const before = (await movesAt(to)).continued;
  await eventually(
    async () => {
      await whole(8, { max_tokens: 8 });
      return (await movesAt(to)).continued > before || undefined;
    },
    `an answer to be handed over: ${JSON.stringify(await movesAt(from))}`,
    30_000,
  );
}

describe('prompts are computed in one pool and answers in the other', () => {
  let prefill: Replica;
  let decode: Replica;

  beforeAll(async () => {
    [prefill, decode] = await Promise.all([start('prefill'), start('decode')]);
    await serving(prefill, decode);
    await handsOver(prefill, decode);
  }, 60_000);

  it('a stream goes on without a changed token, and its prompt is computed once', async () => {
    const before = [await computed(prefill), await computed(decode)] as const;
    const moved = [await movesAt(prefill), await movesAt(decode)] as const;
    const asked = await ask(1);
    expect(asked.session).toBe(prefill.session);
    expect(await asked.text).toBe(alone.get('1'));
    const { handovers, peers } = await movesAt(prefill);
    const first = moved[0].handovers!;
    expect(handovers, JSON.stringify(handovers)).toMatchObject({
      handed_over: first.handed_over + 1,
      tokens: first.tokens + prompt_tokens,
    });
    // All but the last part have travelled while the prompt was computed.
    expect(handovers!.early_tokens - first.early_tokens).toBeGreaterThanOrEqual(
      prompt_tokens - 3 * chunk_tokens,
    );
    expect(peers).toMatchObject([{ peer: decode.session, way: 'sendfile', failures: 0 }]);
    expect(await movesAt(decode)).toMatchObject({ continued: moved[1].continued + 1, missed: 0 });
    const [prompts, answers] = [await computed(prefill), await computed(decode)];
    expect(prompts.prompt - before[0].prompt).toBe(prompt_tokens);
    // The first token, and what was decoded while it was seen that the prompt is done.
    expect(prompts.generated - before[0].generated).toBeLessThanOrEqual(4);
    expect(answers.prompt - before[1].prompt).toBeLessThanOrEqual(2);
    expect(answers.generated - before[1].generated).toBeGreaterThanOrEqual(answer_tokens - 4);
    expect(prompts.text).toMatch(/hpcserve_kv_handovers_total\{outcome="handed_over",[^}]*\} [1-9]/);
  });

  it('draws what one replica draws', async () => {
    expect(await whole(1, seeded)).toBe(alone.get('seeded'));
  });

  it('an answer that comes whole is decoded there, too', async () => {
    const before = [await computed(prefill), await computed(decode)] as const;
    const { continued } = await movesAt(decode);
    expect(await whole(2, { stream: false })).toBe(alone.get('2'));
    expect(await movesAt(decode)).toMatchObject({ continued: continued + 1, missed: 0 });
    const [prompts, answers] = [await computed(prefill), await computed(decode)];
    expect(prompts.prompt - before[0].prompt).toBe(prompt_tokens);
    expect(answers.prompt - before[1].prompt).toBeLessThanOrEqual(2);
    // Nothing is computed twice: what there was of it went along.
    const generated = prompts.generated - before[0].generated + answers.generated - before[1].generated;
    expect(generated).toBe(answer_tokens);
  });

  it('many at once go over, each as if alone', async () => {
    const before = (await movesAt(prefill)).handovers!.handed_over;
    const texts = await Promise.all([3, 4, 5].map((first) => whole(first)));
    expect(texts).toEqual(['3', '4', '5'].map((first) => alone.get(first)));
    expect((await movesAt(prefill)).handovers!.handed_over).toBe(before + 3);
    expect(await movesAt(decode)).toMatchObject({ missed: 0 });
  });

  it('answers of several choices stay where their prompt is computed', async () => {
    const before = (await movesAt(prefill)).handovers!.kept.several;
    await whole(6, { n: 2, max_tokens: 4 });
    expect((await movesAt(prefill)).handovers!.kept.several).toBeGreaterThan(before);
  });

  it('a prompt too short to be worth it is computed where it is decoded', async () => {
    const load = async (): Promise<number | undefined> => {
      const client = await gateway.admin('/hpcserve/v1/table');
      const { sessions } = (await client.json()) as {
        sessions: { session_id: string; models: { pool?: string; handover_tokens_min?: number }[] }[];
      };
      return sessions.find(({ session_id }) => session_id === prefill.session)?.models[0]
        ?.handover_tokens_min;
    };
    const least = await eventually(load, 'the prefill replica to say what is worth a handover');
    expect(least).toBeGreaterThan(4);
    expect(least).toBeLessThan(prompt_tokens);
    const short = await ask(0, { prompt: 'Hi', max_tokens: 5 });
    expect(short.session).toBe(decode.session);
    await short.text;
  });

  it('where the replica that decodes dies, its answer goes on from its tokens, its prompt computed once more', async () => {
    const other = await start('decode');
    await serving(prefill, decode, other);
    const handed = async (): Promise<number> => (await movesAt(prefill)).handovers!.handed_over;
    const before = await handed();
    const asked = await ask(7);
    await asked.after(10);
    const ran = await computed(decode);
    const [first, second] = (await movesAt(other)).continued > 0 ? [other, decode] : [decode, other];
    await kill(first);
    expect(await asked.text, JSON.stringify(ran)).toBe(alone.get('7'));
    expect(await handed()).toBe(before + 2);
    decode = second;
    await serving(prefill, decode);
  }, 60_000);

  it('where the replica that computes prompts dies before all of it is sent, it is begun anew elsewhere', async () => {
    const before = await computed(decode);
    const at = (await computed(prefill)).prompt;
    const asked = ask(0, long);
    await eventually(
      async () => (await computed(prefill)).prompt >= at + 3 * chunk_tokens || undefined,
      'the prompt to be under way',
    );
    await kill(prefill);
    expect(await (await asked).text).toBe(alone.get('long'));
    expect((await computed(decode)).prompt - before.prompt).toBeGreaterThan(0);
    await serving(decode);
  }, 60_000);
});

describe('where nobody takes an answer, it is decoded where its prompt was computed', () => {
  let prefill: Replica;
  const kept = async (): Promise<NonNullable<MovesReport['handovers']>['kept']> =>
    (await movesAt(prefill)).handovers!.kept;

  beforeAll(async () => {
    for (const { session_id } of await gateway.serving('m')) {
      const agent = agents.find(({ session }) => session === session_id);
      if (agent) await kill(agent);
    }
    prefill = await start('prefill');
    await serving(prefill);
  }, 60_000);

  it('since no replica of the decode pool is there', async () => {
    const asked = await ask(1);
    expect(asked.session).toBe(prefill.session);
    expect(await asked.text).toBe(alone.get('1'));
    expect(await kept()).toMatchObject({ no_peer: 1, failed: 0 });
    expect((await movesAt(prefill)).handovers).toMatchObject({
      handed_over: 0,
      last_because: 'no replica of the decode pool is known',
    });
    expect((await computed(prefill)).text).toMatch(
      /hpcserve_kv_handovers_total\{outcome="no_peer",[^}]*\} 1/,
    );
  });

  it('since the only one is full', async () => {
    const decode = await start('decode', {}, 1);
    await serving(prefill, decode);
    await handsOver(prefill, decode);
    const came = (await movesAt(decode)).continued;
    const kept_before = (await kept()).no_room;
    const first = await ask(2, { max_tokens: 300 });
    await eventually(
      async () => (await movesAt(decode)).continued === came + 1 || undefined,
      'it to be handed over',
    );
    expect(await whole(3)).toBe(alone.get('3'));
    expect(await kept()).toMatchObject({ no_room: kept_before + 1 });
    expect((await first.text).startsWith(alone.get('2')!)).toBe(true);
    await kill(decode);
    await serving(prefill);
  }, 60_000);

  it('since the rows of another model file are refused', async () => {
    const decode = await start('decode', { model_path: paths.other });
    const cache = new ContentHashCache(join(cache_home, 'hpcserve/tensors'));
    const version = fileVersion(paths.other, statSync(paths.other, { bigint: true }));
    await eventually(() => cache.read(version), 'the other model to be hashed');
    await serving(prefill, decode);
    const before = (await kept()).failed;
    // The first may be asked for before the worker has found the hash of its file.
    await eventually(
      async () => {
        const asked = await ask(4, { max_tokens: 10 });
        expect(asked.session).toBe(prefill.session);
        expect(alone.get('4')!.startsWith(await asked.text)).toBe(true);
        return (await kept()).failed > before || undefined;
      },
      'rows to be refused',
      30_000,
    );
    expect((await movesAt(prefill)).handovers!.last_because).toMatch(/model is [0-9a-f]{64} there/);
    expect(await movesAt(decode)).toMatchObject({ continued: 0, missed: 0 });
    await kill(decode);
    await serving(prefill);
  }, 60_000);

  it('and a replica that stops in the middle of a transfer holds nobody up', async () => {
    const decode = await start('decode');
    await serving(prefill, decode);
    await handsOver(prefill, decode);
    const worker = await decode.agent.pidOf({ session_id: decode.session });
    const before = (await computed(prefill)).prompt;
    const failed = (await kept()).failed;
    const asked = ask(0, long);
    // Parts of it have been sent, and more are to come.
    await eventually(
      async () => (await computed(prefill)).prompt >= before + 3 * chunk_tokens || undefined,
      'the prompt to be under way',
    );
    process.kill(worker, 'SIGSTOP');
    const began_ms = performance.now();
    expect(await (await asked).text).toBe(alone.get('long'));
    // As long as its prompt and answer take here, and no longer.
    expect(performance.now() - began_ms).toBeLessThan(15_000);
    expect((await kept()).failed).toBeLessThanOrEqual(failed + 1);
    // Its agent ends the worker, which is silent.
    await decode.agent.kill();
  }, 60_000);
});
