/**
 * What a client of OpenAI's API meets: a gateway, a node agent behind it, and on it a device worker with small models
 * made by seed, and a wrapped engine of the tests' own. Requests go over real sockets, TLS of the mesh included.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type OpenAI from 'openai';
import type { ClientOptions } from 'openai';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { Vocabulary } from '../../native/vocabulary.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { gatewayOf } from '../gateway/with-agents.ts';

const engineProgram = fileURLToPath(new URL('foreign-engine.mjs', import.meta.url));

/** Opens the reasoning in the prompt unless told not to; so do the templates of DeepSeek R1 and QwQ. */
const thinkingTemplate =
  "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}" +
  "assistant: {{ '<think>\\n' if enable_thinking is not defined or enable_thinking else '' }}";

/** Longest sequence of every model. */
export const context_tokens = 1024;

export interface Stage extends AsyncDisposable {
  /** Without `/v1`. */
  url: string;
  key: string;
  /** The official client, which asks once. */
  client: OpenAI;
  clientWith(options: ClientOptions): OpenAI;
  /** As a client without a library sends it, with the key. */
  fetch(path: string, init?: RequestInit): Promise<Response>;
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Response>;
  /** JSON of the events of a stream, and the bytes as they came. */
  events(path: string, body: object): Promise<{ events: Record<string, unknown>[]; text: string }>;
  agent: RunningAgent;
  /** As its operator. */
  admin(path: string, init?: RequestInit): Promise<Response>;
  /** Of the site: the gateway's folder and what is beside it. */
  folder: string;
  /** A `logit_bias` with which the model `tiny` all but surely takes these characters wherever it may. */
  favouring(characters: string): Record<string, number>;
}

/**
 * Models `tiny` (alias `gpt-tiny`, llama), `tools` (qwen3), `thinker` (qwen3 that reasons), `foreign` (a wrapped
 * engine).
 */
export async function openStage(change: Partial<GatewayConfig> = {}): Promise<Stage> {
  const site = await Site.open();
  const llama = join(site.folder, 'llama.gguf');
  const qwen = join(site.folder, 'qwen.gguf');
  for (const [path, preset] of [
    [llama, 'tiny-llama'],
    [qwen, 'tiny-qwen3'],
  ] as const)
    await synthesize({ path, shape: synthPresets[preset]!, quantization: 'F16', seed: 1 });
  const chat_template = join(site.folder, 'thinking.jinja');
  writeFileSync(chat_template, thinkingTemplate);
  const native = { engine: 'native' as const, context_tokens, kv_tokens: 4096 };
  // Answers are compared with each other, to the last digit of a log probability.
  const exact = { max_sequences: 8, batch_invariant: true };
  const agent = await site.start([
    unitOf({ ...exact, name: 'tiny', aliases: ['gpt-tiny'] }, { ...native, model_path: llama }),
    unitOf({ ...exact, name: 'tools' }, { ...native, model_path: qwen }),
    unitOf(
      { ...exact, name: 'org/thinker', chat_template },
      { ...native, model_path: qwen, unit: 'thinker-0' },
    ),
    unitOf({ name: 'foreign', command: [process.execPath, engineProgram, '{socket}'] }),
  ]);
  const gateway = await gatewayOf(site, {}, change);
  const { url, key, client: clientWith } = gateway;
  const ask: Stage['fetch'] = (path, { headers, ...init } = {}) =>
    fetch(url + path, { ...init, headers: { authorization: `Bearer ${key}`, ...(headers as object) } });
  const post: Stage['post'] = (path, body, headers = {}) =>
    ask(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: typeof body === 'string' ? body : JSON.stringify(body),
    });
  const client = clientWith({});
  for (const model of ['tiny', 'tools', 'org/thinker', 'foreign']) await site.serving(model, 30_000);
  await untilListed(client, 5);
  return {
    url,
    key,
    client,
    clientWith,
    fetch: ask,
    post,
    agent,
    admin: gateway.admin,
    folder: site.folder,
    favouring: (characters) => {
      const vocabulary = Vocabulary.open(llama);
      try {
        const ids = [...characters].map((one) => vocabulary.tokenize(one, { add_special: false }));
        return Object.fromEntries(ids.map(([id]) => [id!, 50]));
      } finally {
        vocabulary.close();
      }
    },
    events: async (path, body) => {
      const answer = await post(path, { ...body, stream: true });
      const text = await answer.text();
      if (answer.status !== 200) throw new Error(`${answer.status}: ${text}`);
      return { text, events: eventsOf(text) };
    },
    async [Symbol.asyncDispose]() {
      await gateway[Symbol.asyncDispose]();
      await site[Symbol.asyncDispose]();
    },
  };
}

/** The JSON of each event; there must be one `[DONE]`, at the end. */
function eventsOf(text: string): Record<string, unknown>[] {
  const events = text.split('\n\n');
  if (events.pop() !== '' || events.pop() !== 'data: [DONE]' || text.split('[DONE]').length !== 2)
    throw new Error(`a stream must end with one [DONE]: …${text.slice(-200)}`);
  return events.map((event) => JSON.parse(event.replace(/^data: /, '')) as Record<string, unknown>);
}

/** A model that still loads is listed too, but its precision is not known; that of a foreign engine never is. */
async function untilListed(client: OpenAI, names: number): Promise<void> {
  const deadline_ms = performance.now() + 15_000;
  const isServed = (model: { id: string }): boolean =>
    model.id === 'foreign' ||
    !(model as unknown as { hpcserve: { precisions: string[] } }).hpcserve.precisions.includes('auto');
  while ((await client.models.list()).data.filter(isServed).length < names) {
    if (performance.now() > deadline_ms) throw new Error('the gateway does not list every model');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
