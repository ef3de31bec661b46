/** Which replica answers, who may, and what clients are told of it; through a gateway as it runs. */
import { describe, expect, it } from 'vitest';
import type { DeviceDescription } from '../../spec/session-record.ts';
import type { SiteWorkload } from '../../spec/workload.ts';
import {
  chatAnswer,
  chunkEvent,
  doneEvent,
  json,
  shareStage,
  stream,
  type TestModel,
  type TestSession,
  until,
  usageEvent,
} from './support.ts';

const path = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'x' }] };
const gpu: DeviceDescription = { kind: 'gpu', model: 'GH200', memory_bytes: 96e9, isa: ['9.0'] };
const cpu: DeviceDescription = { kind: 'cpu', model: 'Xeon-8480', memory_bytes: 64e9, isa: ['amx_int8'] };

const shared = shareStage();
const { sessions } = shared;

interface Table {
  sessions: { node: string; provider: string; tier: string; models: { name: string; running: number }[] }[];
  gateways: { session_id: string; site: string }[];
  workload: SiteWorkload[];
}

async function table(query = ''): Promise<Table> {
  return (await (await shared.stage.admin(`/mesh/table${query}`)).json()) as Table;
}

async function session(model: TestModel): Promise<TestSession> {
  return await shared.session(json(chatAnswer), model);
}

/** Node that answers, or status and message of the error. */
async function ask(headers: Record<string, string> = {}, body: object = chat): Promise<string> {
  const answer = await shared.stage.post(path, body, headers);
  const { error } = (await answer.json()) as { error?: { message: string; code: string } };
  return answer.headers.get('x-hpcserve-node') ?? `${answer.status} ${error?.code}: ${error?.message}`;
}

describe('an answer', () => {
  it('says who computed it, on what, and for whom', async () => {
    await session({
      node: 'n7',
      engine: 'vllm',
      precision: 'fp8',
      metadata: { devices: [gpu, gpu], provider: 'alice@juelich', site: 'juelich' },
    });
    sessions[0]!.answer = (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'x-hpcserve-provider': 'mallory@x' });
      response.end(JSON.stringify(chatAnswer));
    };
    const answer = await shared.stage.post(path, chat);
    const said = [...answer.headers].filter(([name]) => name.startsWith('x-hpcserve-'));
    expect(Object.fromEntries(said)).toEqual({
      'x-hpcserve-node': 'n7',
      'x-hpcserve-engine': 'vllm',
      'x-hpcserve-session': sessions[0]!.own.id,
      'x-hpcserve-precision': 'fp8',
      'x-hpcserve-model': 'tiny',
      'x-hpcserve-device': '2x GH200',
      'x-hpcserve-provider': 'alice@juelich',
      'x-hpcserve-provider-key': shared.stage.fingerprint('alice@juelich'),
      'x-hpcserve-site': 'juelich',
    });
  });

  it('says where a CPU stands in for a device, in ASCII whatever names hold', async () => {
    await session({
      precision: 'Q8_0 – größer',
      metadata: { devices: [{ ...gpu, emulated: 'cpu' }], provider: 'jürgen@x' },
    });
    const { headers } = await shared.stage.post(path, chat);
    expect(headers.get('x-hpcserve-device')).toBe('GH200 (emulated)');
    expect(headers.get('x-hpcserve-provider')).toBe('j?rgen@x');
    expect(headers.get('x-hpcserve-precision')).toBe('Q8_0 ? gr??er');
  });
});

describe('requests go', () => {
  it('to CPUs before GPUs, and past them when they are full', async () => {
    await session({ node: 'gpu', metadata: { devices: [gpu] } });
    const onCpu = await session({ node: 'cpu', metadata: { devices: [cpu] } });
    for (let count = 0; count < 4; count++) expect(await ask()).toBe('cpu');
    onCpu.load = { running: 8 };
    onCpu.beat();
    await until(async () => (await ask()) === 'gpu', 'the full replica to be passed over');
  });

  it('not to a replica whose job ends before the answer, while there is another', async () => {
    await session({
      node: 'ending',
      metadata: { devices: [cpu], job_end_time_ms: Date.now() + 1 },
    });
    expect(await ask()).toBe('ending');
    await session({ node: 'lasting', metadata: { devices: [gpu], job_end_time_ms: Date.now() + 3600_000 } });
    for (let count = 0; count < 4; count++) expect(await ask()).toBe('lasting');
  });

  it('where a wrapped engine knows the beginning of their prompt', async () => {
    const usage = { ...chatAnswer.usage, prompt_tokens: 550 };
    for (const node of ['a', 'b', 'c'])
      (await session({ node, engine: 'vllm' })).answer = json({ ...chatAnswer, usage });
    const homes = new Set<string>();
    for (let topic = 0; topic < 12; topic++) {
      const system = `${topic} ${'knows a lot about it. '.repeat(100)}`;
      const nodes = new Set<string>();
      for (const question of ['what?', 'and why is that so?', 'where?'])
        nodes.add(
          await ask(
            {},
            {
              ...chat,
              messages: [
                { role: 'system', content: system },
                { role: 'user', content: question },
              ],
            },
          ),
        );
      expect(nodes.size).toBe(1);
      homes.add([...nodes][0]!);
    }
    expect(homes.size).toBeGreaterThan(1);
  });

  it('where their beginning is known, however short a text its tokens make', async () => {
    // A byte-level tokenizer: 440 characters are 440 tokens, and long enough to look for.
    const usage = { ...chatAnswer.usage, prompt_tokens: 440 };
    for (const node of ['a', 'b', 'c'])
      (await session({ node, engine: 'vllm' })).answer = json({ ...chatAnswer, usage });
    const asked = (text: string) => ({ ...chat, messages: [{ role: 'user', content: text.repeat(20) }] });
    // What the gateway learned of texts before fades.
    for (let turn = 0; turn < 60; turn++) await ask({}, asked('knows a lot about it. '));
    const nodes = new Set<string>();
    for (let turn = 0; turn < 8; turn++) nodes.add(await ask({}, asked('has another question. ')));
    expect([...nodes]).toEqual([expect.stringMatching(/^[abc]$/)]);
  });

  it('on to the next replica when one refuses to take more, however many refuse', async () => {
    for (let index = 0; index < 5; index++) {
      const full = await session({ node: `full${index}`, metadata: { devices: [cpu] } });
      full.answer = json({ error: { message: 'full', type: 'rate_limit_error', code: 'busy' } }, 429);
    }
    await session({ node: 'free', metadata: { devices: [gpu] } });
    expect(await ask()).toBe('free');
  });
});

describe('filters', () => {
  async function three(): Promise<void> {
    await session({
      node: 'cheap',
      precision: 'q4_0',
      metadata: { devices: [cpu], tier: 'scavenger', provider: 'bob@cscs', site: 'cscs', region: 'ch' },
    });
    await session({
      node: 'good',
      precision: 'bf16',
      metadata: { devices: [gpu], provider: 'alice@juelich', site: 'juelich', region: 'eu' },
    });
  }

  it('of a request let only those answer that it asks for', async () => {
    await three();
    expect(await ask()).toBe('cheap');
    expect(await ask({ 'x-hpcserve-qos': 'quantization>=8bit' })).toBe('good');
    expect(await ask({ 'x-hpcserve-qos': 'devices=gpu; tier=stable; region=eu' })).toBe('good');
    expect(await ask({ 'x-hpcserve-qos': 'region=ch,us' })).toBe('cheap');
    expect(await ask({ 'x-hpcserve-providers': 'alice@juelich' })).toBe('good');
    expect(await ask({ 'x-hpcserve-providers': shared.stage.fingerprint('alice@juelich') })).toBe('good');
    expect(await ask({ 'x-hpcserve-providers': 'nobody@juelich' })).toMatch(/^404/);
    // A site is no key: who is known there is said.
    expect(await ask({ 'x-hpcserve-providers': '*@juelich' })).toMatch(
      new RegExp(`^400 E_REQUEST_PROVIDERS: .*alice@juelich ${shared.stage.fingerprint('alice@juelich')}`),
    );
    expect(await ask({ 'x-hpcserve-qos': 'qantization>=8bit' })).toMatch(
      /^400 E_REQUEST_QOS: .*did you mean quantization/,
    );
    expect(await ask({ 'x-hpcserve-providers': 'bob cscs' })).toMatch(/^400 E_REQUEST_PROVIDERS/);
  });

  it('that leave nobody say which excludes whom, and are not worth another try', async () => {
    await three();
    const answer = await shared.stage.post(path, chat, {
      'x-hpcserve-qos': 'quantization>=8bit; devices=cpu',
      'x-hpcserve-providers': 'bob@cscs',
    });
    expect(answer.status).toBe(404);
    expect(answer.headers.get('retry-after')).toBeNull();
    const { error } = (await answer.json()) as { error: { message: string } };
    expect(error.message).toContain('quantization excludes precision q4_0 (1 of 2)');
    const alice = shared.stage.fingerprint('alice@juelich').slice(0, 8);
    expect(error.message).toContain(`providers excludes provider alice@juelich (${alice}) (1 of 2)`);
  });

  it('that leave only replicas that do not serve yet ask for patience', async () => {
    await session({ node: 'cheap', precision: 'q4_0' });
    await session({ node: 'later', precision: 'f16', state: 'loading' });
    await until(async () => (await table()).sessions.length === 2, 'both sessions to be known');
    const answer = await shared.stage.post(path, chat, { 'x-hpcserve-qos': 'quantization>=16bit; wait=0.5' });
    expect(answer.status).toBe(503);
    expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
    const { error } = (await answer.json()) as { error: { message: string } };
    expect(error.message).toContain('a replica on later is loading its weights');
    expect(error.message).toContain('quantization excludes precision q4_0 (1 of 2)');
  });

  it('of batch work wait for idle nodes, where no replica is on such', async () => {
    await session({ node: 'good', precision: 'bf16', metadata: { devices: [gpu] } });
    const { key } = await shared.stage.newKey({ batch: true });
    const as = { authorization: `Bearer ${key}` };
    await until(async () => (await table()).sessions.length === 1, 'the session to be known');
    const answer = await shared.stage.post(path, chat, as);
    expect(answer.status).toBe(503);
    expect(Number(answer.headers.get('retry-after'))).toBe(120);
    const { error } = (await answer.json()) as { error: { message: string; code: string } };
    expect(error.message).toMatch(/no replica of .* is on idle nodes now/);
    // Whoever asks for a tier means it.
    const asked = await shared.stage.post(path, chat, { ...as, 'x-hpcserve-qos': 'tier=scavenger' });
    expect(asked.status).toBe(404);
    expect(await ask({ ...as, 'x-hpcserve-qos': 'tier=stable' })).toBe('good');
  });

  it('of a key hold for all its requests; a request narrows providers and replaces terms', async () => {
    await three();
    const { key, id } = await shared.stage.newKey({
      providers: ['alice@juelich'],
      qos: 'tier=stable; devices=gpu',
    });
    const as = { authorization: `Bearer ${key}` };
    expect(await ask(as)).toBe('good');
    expect(await ask({ ...as, 'x-hpcserve-providers': 'bob@cscs' })).toMatch(/^404/);
    expect(await ask({ ...as, 'x-hpcserve-qos': 'devices=cpu' })).toMatch(/^404/);
    const seen = await (await fetch(`${shared.stage.url}/mesh/table`, { headers: as })).json();
    expect((seen as Table).sessions.map(({ node }) => node)).toEqual(['good']);
    const changed = await shared.stage.admin(`/hpcserve/v1/keys/${id}`, {
      method: 'PATCH',
      body: { providers: null, qos: 'tier=scavenger' },
    });
    expect(await changed.json()).toMatchObject({ id, settings: { qos: 'tier=scavenger' } });
    expect(await ask(as)).toBe('cheap');
    expect(await ask({ ...as, 'x-hpcserve-qos': 'tier=stable' })).toBe('good');
    // Batch work leaves stable replicas to others, unless it says otherwise.
    await shared.stage.admin(`/hpcserve/v1/keys/${id}`, {
      method: 'PATCH',
      body: { qos: null, batch: true },
    });
    for (let turn = 0; turn < 5; turn++) expect(await ask(as)).toBe('cheap');
    expect(await ask({ ...as, 'x-hpcserve-qos': 'tier=stable' })).toBe('good');
    expect(await ask({ ...as, 'x-hpcserve-qos': 'tier=stable; devices=tpu' })).toMatch(/^404/);
    const wrong = await shared.stage.admin(`/hpcserve/v1/keys/${id}`, {
      method: 'PATCH',
      body: { qos: 'teir=x' },
    });
    expect(wrong.status).toBe(400);
  });

  it('of models hide the others, and refuse them', async () => {
    await session({ node: 'one', name: 'one', aliases: ['shared'] });
    await session({ node: 'two', name: 'two', aliases: ['shared'] });
    const { key } = await shared.stage.newKey({ models: ['one'] });
    const as = { authorization: `Bearer ${key}` };
    expect(await ask(as, { ...chat, model: 'one' })).toBe('one');
    for (const model of ['two', 'shared', 'none'])
      expect(await ask(as, { ...chat, model })).toMatch(/^403 E_KEY_MODEL: .*may be used for one/);
    const listed = (await (await fetch(`${shared.stage.url}/v1/models`, { headers: as })).json()) as {
      data: { id: string }[];
    };
    expect(listed.data.map(({ id }) => id)).toEqual(['one']);
    expect((await fetch(`${shared.stage.url}/v1/models/two`, { headers: as })).status).toBe(403);
    const seen = (await (await fetch(`${shared.stage.url}/mesh/table`, { headers: as })).json()) as Table;
    expect(seen.sessions.map(({ node }) => node)).toEqual(['one']);
  });
});

describe('an alias of several models', () => {
  const slow = (tokens: number, pause_ms: number): TestSession['answer'] => {
    return async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (let count = 0; count < tokens; count++) {
        response.write(chunkEvent('x'));
        await new Promise((resolve) => setTimeout(resolve, pause_ms));
      }
      const usage = { prompt_tokens: 4, completion_tokens: tokens, total_tokens: 4 + tokens };
      response.end(`data: ${JSON.stringify({ choices: [], usage })}\n\n${doneEvent}`);
    };
  };

  it('is listed once with its members, and answered by one that keeps its objective', async () => {
    // Far apart: a moment in which the machine does something else does not make the fast one slow.
    const slo = { tpot_ms: 500 };
    const a = await session({ node: 'a', name: 'model-a', aliases: ['assistant'], slo });
    const b = await session({ node: 'b', name: 'model-b', aliases: ['assistant'], slo });
    a.answer = slow(4, 800);
    b.answer = slow(4, 1);
    const { data } = (await (
      await fetch(`${shared.stage.url}/v1/models`, {
        headers: { authorization: `Bearer ${shared.stage.key}` },
      })
    ).json()) as { data: { id: string; hpcserve: { models: string[]; replicas: number } }[] };
    const alias = data.filter(({ id }) => id === 'assistant');
    expect(alias).toHaveLength(1);
    expect(alias[0]!.hpcserve).toMatchObject({ models: ['model-a', 'model-b'], replicas: 2 });
    const asked = { ...chat, stream: true };
    for (const model of ['model-a', 'model-b'])
      await (await shared.stage.post(path, { ...asked, model })).text();
    // Busier, but known to be fast enough.
    b.load = { running: 3 };
    b.beat();
    await until(
      async () => (await table('?model=model-b')).sessions[0]!.models[0]!.running === 3,
      'the load to be known',
    );
    for (let count = 0; count < 3; count++) {
      const answer = await shared.stage.post(path, { ...asked, model: 'assistant' });
      await answer.text();
      expect(answer.headers.get('x-hpcserve-model')).toBe('model-b');
    }
    expect(b.requests.at(-1)!.headers['x-hpcserve-model']).toBe('model-b');
    expect(JSON.parse(b.requests.at(-1)!.body).model).toBe('assistant');
  });

  it('is no other model’s own name', async () => {
    await session({ node: 'own', name: 'tiny', metadata: { devices: [gpu] } });
    await session({ node: 'other', name: 'other', aliases: ['tiny'], metadata: { devices: [cpu] } });
    for (let count = 0; count < 3; count++) expect(await ask()).toBe('own');
  });

  it('goes to another model when one is full', async () => {
    const a = await session({ node: 'a', name: 'model-a', aliases: ['assistant'] });
    await session({ node: 'b', name: 'model-b', aliases: ['assistant'] });
    a.answer = json({ error: { message: 'full', type: 'rate_limit_error', code: 'busy' } }, 429);
    for (let count = 0; count < 4; count++) expect(await ask({}, { ...chat, model: 'assistant' })).toBe('b');
  });
});

describe('the table of the mesh', () => {
  it('is asked by GPU, memory, model, provider and tier, by who has a key', async () => {
    await session({ node: 'g', name: 'big', aliases: ['large'], metadata: { devices: [gpu] } });
    await session({
      node: 'c',
      metadata: { devices: [cpu], tier: 'scavenger', provider: 'bob@cscs' },
    });
    const nodes = async (query: string): Promise<string> =>
      (await table(query)).sessions
        .map(({ node }) => node)
        .sort()
        .join();
    expect(await nodes('')).toBe('c,g');
    expect(await nodes('?gpu=gh200')).toBe('g');
    expect(await nodes('?gpu=any')).toBe('g');
    expect(await nodes('?gpu=A100')).toBe('');
    expect(await nodes('?gpu=Xeon-8480')).toBe('');
    expect(await nodes('?memory_gb_min=80')).toBe('g');
    expect(await nodes('?memory_gb_min=64')).toBe('c,g');
    expect(await nodes('?gpu=GH200&memory_gb_min=97')).toBe('');
    expect(await nodes('?model=large')).toBe('g');
    expect(await nodes('?provider=*@cscs')).toBe('c');
    expect(await nodes('?tier=stable')).toBe('g');
    expect((await table()).gateways).toMatchObject([
      { session_id: shared.stage.gateway.endpoint.session_id, site: 'test' },
    ]);
    for (const query of ['?gpus=x', '?memory_gb_min=much', '?tier=gold'])
      expect((await shared.stage.admin(`/mesh/table${query}`)).status).toBe(400);
    expect((await fetch(`${shared.stage.url}/mesh/table`)).status).toBe(401);
    const key = { authorization: `Bearer ${shared.stage.key}` };
    expect((await fetch(`${shared.stage.url}/mesh/table`, { headers: key })).status).toBe(200);
  });

  it('holds what was measured of the load, as the metrics do', async () => {
    await session({ name: 'measured' });
    sessions[0]!.answer = stream([chunkEvent('x'), usageEvent, doneEvent]);
    for (let count = 0; count < 5; count++)
      await (await shared.stage.post(path, { ...chat, model: 'measured', stream: true })).text();
    const workload = (await table()).workload.find(({ model }) => model === 'measured');
    expect(workload).toMatchObject({ requests: 5, refused_per_s: 0, window_s: 900 });
    expect(workload!.input_tokens).toBeCloseTo(4, 9);
    expect(workload!.output_tokens).toBeCloseTo(3, 9);
    expect(workload!.rate_per_s).toBeGreaterThan(0.1);
    const metrics = await (await shared.stage.admin('/metrics')).text();
    expect(metrics).toMatch(
      /hpcserve_workload_tokens\{model="measured",kind="output",statistic="mean"\} (3|2\.99)/,
    );
    expect(metrics).toMatch(/hpcserve_workload_requests_per_second\{model="measured",kind="arrived"\} 0\.\d/);
  });
});
