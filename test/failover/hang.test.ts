/** Replicas that hang, behind a gateway: their clients go on elsewhere, or are told; nobody waits for ever. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import { synthPresets } from '../../native/synth/shape.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { type RunningAgent, Site, unitOf } from '../agent/harness.ts';
import { lacking, stopComputingThread } from '../agent/stop-thread.ts';
import { eventually } from '../mesh/fixtures.ts';

const engine = fileURLToPath(new URL('../agent/fragile-engine.mjs', import.meta.url));
const timeouts = { first_token_s: 60, between_tokens_s: 60, total_s: 600, health_s: 0.9, stall_s: 2 };

let site: Site;
let gateway: RunningGateway;
let client: OpenAI;
let model_path: string;
beforeAll(async () => {
  site = await Site.open();
  model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  gateway = await startGateway(
    {
      format: 1,
      site: 'local',
      provider: 'someone@local',
      host: '127.0.0.1',
      port: 0,
      mesh_folder: site.mesh_folder,
      gateway_folder: join(site.folder, 'gateway'),
      deployments_folder: join(site.folder, 'deployments'),
    },
    { log: pino({ enabled: false }), times: { poll_ms: 50, drain_ms: 2000, continue_ms: 1500 } },
  );
  const made = await fetch(`${gateway.endpoint.url}/hpcserve/v1/keys`, {
    method: 'POST',
    headers: { authorization: `Bearer ${gateway.admin_token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'tester' }),
  });
  const { key } = (await made.json()) as { key: string };
  client = new OpenAI({ baseURL: `${gateway.endpoint.url}/v1`, apiKey: key, maxRetries: 0 });
}, 60_000);
afterAll(async () => {
  await gateway?.close();
  await site?.[Symbol.asyncDispose]();
});

/** Once so many replicas of a model can be asked. */
async function reachable(model: string, replicas: number): Promise<void> {
  await eventually(async () => {
    const answer = await fetch(`${gateway.endpoint.url}/hpcserve/v1/table`, {
      headers: { authorization: `Bearer ${gateway.admin_token}` },
    });
    const { sessions } = (await answer.json()) as {
      sessions: { reachable: boolean; lifecycle: string; models: { name: string; state: string }[] }[];
    };
    const those = sessions.filter(
      ({ reachable: there, lifecycle, models }) =>
        there &&
        lifecycle === 'SERVING' &&
        models.some(({ name, state }) => name === model && state === 'serving'),
    );
    return those.length === replicas;
  }, `${replicas} replicas of ${model}`);
}

async function pidOfSession(agents: RunningAgent[], session_id: string): Promise<number> {
  for (const agent of agents) {
    const { sessions } = (await agent.state())!;
    const found = sessions.find((session) => session.session_id === session_id);
    if (found?.pid !== undefined) return found.pid;
  }
  throw new Error(`nobody has the session ${session_id}`);
}

describe.skipIf(lacking !== '')(`a stuck compute thread${lacking && ` [skipped: needs ${lacking}]`}`, () => {
  it('its streams go on at the letter on another replica', async () => {
    const unit = unitOf(
      { name: 'm', batch_invariant: true, timeouts },
      { engine: 'native', model_path, context_tokens: 4096, kv_tokens: 8192 },
    );
    const agents = await Promise.all([site.start([unit]), site.start([unit])]);
    await reachable('m', 2);
    const body = {
      model: 'm',
      messages: [{ role: 'user' as const, content: 'Go on and on.' }],
      max_tokens: 3000,
      seed: 4,
      ignore_eos: true,
    };
    const undisturbed = await client.chat.completions.create(body);
    const { data: stream, response } = await client.chat.completions
      .create({ ...body, stream: true })
      .withResponse();
    const pid = await pidOfSession(agents, response.headers.get('x-hpcserve-session')!);
    const stopper = await stopComputingThread(pid, site.folder);
    try {
      let text = '';
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
      expect(text).toBe(undisturbed.choices[0]!.message.content);
      const metrics = await fetch(`${gateway.endpoint.url}/metrics`, {
        headers: { authorization: `Bearer ${gateway.admin_token}` },
      });
      expect(await metrics.text()).toMatch(/^hpcserve_continuations_total\{[^}]*\} 1$/m);
    } finally {
      stopper.kill('SIGKILL');
    }
    for (const agent of agents) await agent.kill();
  }, 60_000);
});

describe('the only replica, a wrapped engine, hangs', () => {
  it.each(['deaf', 'stall'])('%s: its stream ends with an error that the client raises', async (verb) => {
    const command = [process.execPath, engine, '{socket}'];
    const agent = await site.start([unitOf({ name: verb, command, timeouts }, { model_path: engine })]);
    await reachable(verb, 1);
    const ask = async (content: string): Promise<string> => {
      let text = '';
      const body = { model: verb, messages: [{ role: 'user' as const, content }], stream: true as const };
      for await (const chunk of await client.chat.completions.create(body))
        text += chunk.choices[0]?.delta.content ?? '';
      return text;
    };
    expect(await ask('count 2')).toBe('1 2 ');
    await expect(ask(verb)).rejects.toThrow(/ended in the middle of its answer/);
    expect((await agent.ended).code).toBe(8);
    // From then on it is said at once.
    await expect(ask('count 2')).rejects.toBeInstanceOf(OpenAI.APIError);
  });
});
