/** vLLM itself from end to end: two models on one node, by a real agent, asked over the mesh. */
import { readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { headers } from '../../../spec/wire.ts';
import { realVllm, vllm_ready_ms } from '../../engines/vllm.ts';
import { type RunningAgent, Site } from '../support.ts';

const { vllm, lacking } = realVllm();
const parsers = { tools: ['hermes'], reasoning: [] };

describe.skipIf(lacking !== '')(`vLLM${lacking}`, () => {
  let site: Site;
  let agent: RunningAgent;
  let records: Record<string, SessionRecord>;

  beforeAll(async () => {
    site = await Site.open();
    const folder = vllm!.model(join(site.folder, 'tiny'));
    const units = ['one', 'two'].map((name) => vllm!.unit(name, folder, {}, { parsers }));
    agent = await site.start(units, vllm!.launch);
    const [one, two] = await Promise.all(['one', 'two'].map((name) => site.serving(name, vllm_ready_ms)));
    records = { one: one!, two: two! };
  }, vllm_ready_ms + 60_000);

  afterAll(async () => site?.[Symbol.asyncDispose](), 60_000);

  async function ask(name: string, path: string, body: object): Promise<{ status: number; text: string }> {
    const answer = await site.pool(records[name]!).request({
      method: 'POST',
      path,
      headers: { 'content-type': 'application/json', [headers.model]: name },
      body: JSON.stringify({ model: name, ...body }),
    });
    return { status: answer.statusCode, text: await answer.body.text() };
  }

  const chat = async (name: string, body: object) => {
    const { status, text } = await ask(name, '/v1/chat/completions', {
      messages: [{ role: 'user', content: 'hello' }],
      ...body,
    });
    expect(status, text).toBe(200);
    return text;
  };

  test('says its version, and that it listens on a socket', async () => {
    expect(records.one!.metadata).toMatchObject({
      engine: 'vllm',
      engine_version: expect.stringMatching(/^\d/),
    });
    const [runtime] = await readdir(join(site.folder, 'run'));
    const files = await readdir(join(site.folder, 'run', runtime!), { recursive: true });
    expect(files.filter((file) => file.endsWith('engine.sock'))).toHaveLength(2);
  });

  test.each(['one', 'two'])('%s answers a stream with log-probabilities', async (name) => {
    const text = await chat(name, {
      stream: true,
      max_tokens: 8,
      ignore_eos: true,
      logprobs: true,
      top_logprobs: 2,
      stream_options: { include_usage: true },
    });
    const chunks = text
      .split('\n')
      .filter((line) => line.startsWith('data: {'))
      .map((line) => JSON.parse(line.slice(6)));
    expect(chunks[0].model).toBe(name);
    const logprobs = chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? []);
    expect(logprobs).toHaveLength(8);
    expect(logprobs[0].top_logprobs).toHaveLength(2);
    expect(chunks.at(-1).usage).toMatchObject({ completion_tokens: 8 });
    expect(text.trim().endsWith('data: [DONE]')).toBe(true);
  });

  const schema = {
    type: 'object',
    properties: { warm: { type: 'boolean' } },
    required: ['warm'],
    additionalProperties: false,
  };
  const tools = [
    { type: 'function', function: { name: 'weather', description: 'Tells.', parameters: schema } },
  ];

  test('takes tools, since it is told a parser for them', async () => {
    await chat('one', { tools, tool_choice: 'auto', max_tokens: 4 });
    const named = { type: 'function', function: { name: 'weather' } };
    const answer = JSON.parse(await chat('one', { tools, tool_choice: named, max_tokens: 512 }));
    const [call] = answer.choices[0].message.tool_calls ?? [];
    expect(call, JSON.stringify(answer)).toBeDefined();
    expect(call.function.name).toBe('weather');
    // What a model of random weights says of the weather is bound to no schema here.
    expect(call.function.arguments).toEqual(expect.any(String));
  });

  test('keeps to a schema', async () => {
    const response_format = { type: 'json_schema', json_schema: { name: 'w', schema, strict: true } };
    const answer = JSON.parse(await chat('two', { response_format, max_tokens: 64 }));
    expect(JSON.parse(answer.choices[0].message.content)).toEqual({ warm: expect.any(Boolean) });
  });

  test('listens nowhere that others reach, and does not log what the agent asks', async () => {
    for (const name of ['one', 'two']) {
      const addresses = await listeningAddresses(await agent.pidOf(records[name]!));
      expect(addresses.filter((address) => address !== '0100007F')).toEqual([]);
      const log = (await agent.engineLog(`${name}-0`)).join('\n');
      expect(log).toMatch(/POST \/v1\/chat\/completions/);
      expect(log).not.toMatch(/GET \/(health|metrics)/);
    }
  });

  test(
    'is started again when it was killed, while its neighbour serves',
    async () => {
      const before = await agent.pidOf(records.one!);
      process.kill(before, 'SIGKILL');
      await chat('two', { max_tokens: 4 });
      const { session_id } = records.one!;
      records.one = await site.session(
        (record) =>
          record.session_id !== session_id &&
          record.lifecycle === 'SERVING' &&
          record.metadata.models.some(({ name, state }) => name === 'one' && state === 'serving'),
        vllm_ready_ms,
      );
      expect(await agent.pidOf(records.one)).not.toBe(before);
      await chat('one', { max_tokens: 4 });
    },
    vllm_ready_ms + 30_000,
  );

  test('ends with its agent', async () => {
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
  }, 60_000);
});

/** Addresses (IPv4 in the kernel's hex) on which a process and its children listen over TCP. */
async function listeningAddresses(pid: number): Promise<string[]> {
  const inodes = new Set<string>();
  for (const each of [pid, ...(await descendantsOf(pid))])
    for (const descriptor of await readdir(`/proc/${each}/fd`)) {
      const target = await readlink(`/proc/${each}/fd/${descriptor}`).catch(() => '');
      const inode = /^socket:\[(\d+)\]$/.exec(target)?.[1];
      if (inode !== undefined) inodes.add(inode);
    }
  const tables = await Promise.all(
    ['tcp', 'tcp6'].map((name) => readFile(`/proc/${pid}/net/${name}`, 'utf8')),
  );
  return tables
    .join('')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === '0A' && inodes.has(fields[9] ?? ''))
    .map((fields) => fields[1]!.split(':')[0]!);
}

async function descendantsOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  const children = text.split(' ').filter(Boolean).map(Number);
  return [...children, ...(await Promise.all(children.map(descendantsOf))).flat()];
}
