/** Replicas that hang, behind a gateway: their clients go on elsewhere, or are told; nobody waits for ever. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { pidOfSession, Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const engine = fileURLToPath(new URL('../agent/fragile-engine.mjs', import.meta.url));
const timeouts = { first_token_s: 60, between_tokens_s: 60, total_s: 600, health_s: 4.5, stall_s: 2 };
/** Until agents that were just started serve, on a machine that is busy with other tests. */
const start_ms = 45_000;

let site: Site;
let gateway: SiteGateway;
let client: OpenAI;
let model_path: string;
beforeAll(async () => {
  site = await Site.open();
  model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  gateway = await gatewayOf(site, { continue_ms: 1500 });
  client = gateway.client();
}, 60_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

describe('a request with which a device worker falls silent', () => {
  it('is refused by its own code and given to no other, and its client does not try again by itself', async () => {
    const unit = unitOf(
      { name: 'h', timeouts },
      { engine: 'native', model_path, context_tokens: 4096, kv_tokens: 8192 },
    );
    const agents = await Promise.all([site.start([unit]), site.start([unit])]);
    await gateway.untilServing('h', 2, start_ms);
    const states = await Promise.all(agents.map((agent) => agent.state()));
    // Both, so that it does not matter which of them is asked.
    for (const { role, pid } of states.flatMap((state) => state?.sessions ?? []))
      if (role === 'device-worker') process.kill(pid!, 'SIGSTOP');
    const body = { model: 'h', messages: [{ role: 'user' as const, content: 'Hello.' }], max_tokens: 4 };
    const error = await client.chat.completions.create(body).then(
      () => undefined,
      (thrown: unknown) => thrown as InstanceType<typeof OpenAI.APIError>,
    );
    expect([error?.status, error?.code]).toEqual([502, 'E_REQUEST_STOPS_REPLICA']);
    expect(error!.headers!.get('x-should-retry')).toBe('false');
    expect(error!.message).toContain('a replica of h stopped while it worked on this request alone');
    for (const agent of agents) await agent.kill();
  }, 120_000);
});

describe('a wrapped engine is stopped by SIGSTOP', () => {
  it('its requests are answered by the other one within 5 s, and it gets no more until it goes on', async () => {
    const command = [process.execPath, engine, '{socket}'];
    const unit = unitOf(
      { name: 's', command, timeouts: { ...timeouts, stall_s: 300 } },
      { model_path: engine },
    );
    const agents = await Promise.all([site.start([unit]), site.start([unit])]);
    await gateway.untilServing('s', 2, start_ms);
    const body = {
      model: 's',
      messages: [{ role: 'user' as const, content: 'count 3' }],
      stream: true as const,
    };
    const ask = async (): Promise<{ text: string; session: string }> => {
      const { data, response } = await client.chat.completions.create(body).withResponse();
      let text = '';
      for await (const chunk of data) text += chunk.choices[0]?.delta.content ?? '';
      return { text, session: response.headers.get('x-hpcserve-session')! };
    };
    const { session } = await ask();
    const pid = await pidOfSession(agents, session);
    process.kill(pid, 'SIGSTOP');
    const began_ms = performance.now();
    const answers = await Promise.all(Array.from({ length: 8 }, ask));
    expect(performance.now() - began_ms).toBeLessThan(5000);
    for (const answer of answers) expect(answer).toMatchObject({ text: '1 2 3 ' });
    expect(answers.map((answer) => answer.session)).not.toContain(session);
    await gateway.untilServing('s', 1);
    for (let asked = 0; asked < 8; asked++) expect((await ask()).session).not.toBe(session);
    process.kill(pid, 'SIGCONT');
    await gateway.untilServing('s', 2);
    await eventually(async () => (await ask()).session === session, 'it gets requests again');
    for (const agent of agents) await agent.kill();
  }, 90_000);
});

describe('the only replica, a wrapped engine, hangs', () => {
  it.each(['deaf', 'stall'])(
    '%s: its stream ends with an error that the client raises',
    async (verb) => {
      const command = [process.execPath, engine, '{socket}'];
      const agent = await site.start([unitOf({ name: verb, command, timeouts }, { model_path: engine })]);
      await gateway.untilServing(verb, 1, start_ms);
      const ask = async (content: string): Promise<string> => {
        let text = '';
        const body = { model: verb, messages: [{ role: 'user' as const, content }], stream: true as const };
        for await (const chunk of await client.chat.completions.create(body))
          text += chunk.choices[0]?.delta.content ?? '';
        return text;
      };
      expect(await ask('count 2')).toBe('1 2 ');
      await expect(ask(verb)).rejects.toThrow(/ended in the middle of its answer/);
      // It is started again, and nothing else ends with it.
      await eventually(
        async () => (await ask('count 2').catch(() => '')) === '1 2 ',
        'it serves again',
        start_ms,
      );
      expect(agent.process.exitCode).toBeNull();
    },
    90_000,
  );
});
