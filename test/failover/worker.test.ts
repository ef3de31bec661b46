/** What a device worker does with an answer that another one began, at every place where it may have been cut. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ContinuedChoice, ContinueRequest } from '../../spec/wire.ts';
import { tinyModel, WorkerHarness } from '../agent/device-worker/support.ts';

const messages = [{ role: 'user', content: 'Go on and on.' }];
const header = { 'x-hpcserve-token-ids': '1' };

/** An event of a stream, as far as these tests read it. */
interface Event {
  id: string;
  created: number;
  choices: {
    index: number;
    text?: string;
    delta?: {
      role?: string;
      content?: string;
      reasoning_content?: string;
      tool_calls?: { function: { arguments: string } }[];
    };
    logprobs: { content?: unknown[]; tokens?: string[]; text_offset?: number[] } | null;
    finish_reason: string | null;
  }[];
  usage?: { prompt_tokens_details: object };
  hpcserve_token_ids?: number[];
  hpcserve_choice?: number;
  hpcserve_finished?: boolean;
  hpcserve_withheld?: number;
  hpcserve_seed?: number;
  hpcserve_rendered_ms?: number;
  hpcserve_prompt_digest?: string;
  hpcserve_cached_tokens?: number;
}

/** What a client makes of events: each choice's text, calls, log probabilities, roles and ends; and the usage. */
function read(events: readonly Event[], choices: number) {
  const whole = Array.from({ length: choices }, () => ({
    text: '',
    reasoning: '',
    calls: '',
    roles: 0,
    logprobs: [] as unknown[],
    offsets: [] as number[],
    finish: [] as string[],
    token_ids: [] as number[],
  }));
  for (const event of events) {
    for (const { index, text, delta, logprobs, finish_reason } of event.choices) {
      const choice = whole[index]!;
      choice.text += text ?? delta?.content ?? '';
      choice.reasoning += delta?.reasoning_content ?? '';
      for (const call of delta?.tool_calls ?? []) choice.calls += call.function.arguments;
      if (delta?.role) choice.roles++;
      choice.logprobs.push(...(logprobs?.content ?? logprobs?.tokens ?? []));
      choice.offsets.push(...(logprobs?.text_offset ?? []));
      if (finish_reason !== null) choice.finish.push(finish_reason);
      choice.token_ids.push(...(event.hpcserve_token_ids ?? []));
    }
  }
  const usage = structuredClone(events.at(-1)?.usage);
  // Of several sequences it depends on their order in time which find how much in the cache.
  if (usage && choices > 1) usage.prompt_tokens_details = {};
  return { whole, usage };
}

/** What an answer that came whole says, but for what is drawn for each request. */
function withoutCallIds({ status, text }: { status: number; text: string }, choices: number) {
  expect(status, text).toBe(200);
  const answer = JSON.parse(text.replace(/"id":"call_\w+"/g, '"id":"call"')) as {
    choices: unknown;
    usage: { prompt_tokens_details: object };
  };
  if (choices > 1) answer.usage.prompt_tokens_details = {};
  return { choices: answer.choices, usage: answer.usage };
}

function continueFrom(
  got: readonly Event[],
  choices: number,
): { seed: number; hpcserve_continue: ContinueRequest & { choices: ContinuedChoice[] } } {
  const list = Array.from({ length: choices }, (): Required<ContinuedChoice> => {
    return { token_ids: [], opened: false, finished: false, withheld: 0 };
  });
  for (const event of got) {
    if (!event.hpcserve_token_ids) continue;
    const choice = list[event.hpcserve_choice ?? 0]!;
    choice.opened = true;
    choice.token_ids.push(...event.hpcserve_token_ids);
    if (event.hpcserve_token_ids.length > 0) choice.withheld = event.hpcserve_withheld ?? 0;
    if (event.hpcserve_finished) choice.finished = true;
  }
  const first = got[0]!;
  return {
    seed: first.hpcserve_seed!,
    hpcserve_continue: {
      choices: list,
      id: first.id,
      created: first.created,
      rendered_ms: first.hpcserve_rendered_ms,
      prompt_digest: first.hpcserve_prompt_digest,
      cached_tokens: first.hpcserve_cached_tokens,
    },
  };
}

const schema = {
  type: 'json_schema',
  json_schema: {
    name: 'x',
    schema: { type: 'array', items: { type: 'integer' }, minItems: 4, maxItems: 7 },
  },
};
const tool = {
  type: 'function',
  function: {
    name: 'add',
    parameters: {
      type: 'object',
      properties: { a: { type: 'integer' } },
      required: ['a'],
      additionalProperties: false,
    },
  },
};
const chat = '/v1/chat/completions';
const text = '/v1/completions';

/** Path, choices and members of a request. */
const cases: [string, string, number, Record<string, unknown>][] = [
  ['sampled, log probabilities', chat, 1, { messages, logprobs: true, top_logprobs: 3, seed: 5 }],
  ['several choices', chat, 3, { messages, n: 3, seed: 6, temperature: 1.3 }],
  ['several prompts', text, 4, { prompt: ['one', 'another'], n: 2, seed: 7 }],
  ['an echoed prompt', text, 1, { prompt: 'Once upon', echo: true, logprobs: 2, seed: 8 }],
  ['a schema', chat, 1, { messages, response_format: schema, seed: 9 }],
  ['a tool call', chat, 1, { messages, model: 'q', tools: [tool], tool_choice: 'required', seed: 10 }],
  [
    'a reasoning that is ended',
    chat,
    2,
    { messages, model: 'thinker', n: 2, reasoning: { max_tokens: 4 }, response_format: schema, seed: 12 },
  ],
  [
    'penalties, a bias and a least length',
    chat,
    2,
    {
      messages,
      n: 2,
      seed: 13,
      temperature: 1.2,
      presence_penalty: 1.1,
      frequency_penalty: 0.7,
      repetition_penalty: 1.3,
      logit_bias: { '2': 6, '5': -3 },
      min_tokens: 12,
    },
  ],
  ['until its stop token', chat, 1, { messages, seed: 11, min_tokens: 3, logit_bias: { '2': 4 } }],
];

describe('an answer that another worker began is the undisturbed answer, wherever it was cut', () => {
  const worker = new WorkerHarness();
  let path = '';
  beforeAll(async () => {
    path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure();
    await worker.load({ name: 'm', model_path: path, batch_invariant: true });
    const qwen = await tinyModel(worker.folder, 'tiny-qwen3');
    await worker.load({ name: 'q', model_path: qwen, batch_invariant: true });
    const chat_template_file = join(worker.folder, 'thinking.jinja');
    writeFileSync(chat_template_file, "{{ messages[-1].content.split('</think>')[-1] }}<think>\n");
    await worker.load({ name: 'thinker', model_path: qwen, batch_invariant: true, chat_template_file });
  });
  afterAll(() => worker.close());

  it.each(cases)('%s', async (_, path, choices, more) => {
    const request = { model: 'm', max_tokens: 16, stream_options: { include_usage: true }, ...more };
    const events = (await worker.stream(path, request, header)) as Event[];
    const undisturbed = read(events, choices);
    expect(undisturbed.whole.every(({ finish }) => finish.length === 1)).toBe(true);
    for (let cut = 1; cut < events.length; cut += choices > 1 ? 3 : 1) {
      const got = events.slice(0, cut);
      const rest = (await worker.stream(
        path,
        { ...request, ...continueFrom(got, choices) },
        header,
      )) as Event[];
      expect({ cut, ...read([...got, ...rest], choices) }).toEqual({ cut, ...undisturbed });
      expect(new Set([...got, ...rest].map(({ id, created }) => `${id} ${created}`)).size).toBe(1);
    }
  });

  it.each(cases.filter(([, , , { logprobs }]) => logprobs === undefined))(
    '%s, of an answer that comes whole',
    async (_, path, choices, more) => {
      const request = { model: 'm', max_tokens: 16, ...more };
      const asked = { ...request, stream_options: { include_usage: true } };
      // What was found of its prompt is told, too: with this, all of them find it.
      await worker.post(path, request);
      const events = (await worker.stream(path, asked, header)) as Event[];
      const undisturbed = withoutCallIds(await worker.post(path, request), choices);
      for (let cut = 1; cut < events.length; cut += choices > 1 ? 3 : 1) {
        const { seed, hpcserve_continue } = continueFrom(events.slice(0, cut), choices);
        // As a worker tells it that gives the answer away: its tokens alone.
        const begun = hpcserve_continue.choices.map(({ token_ids }) => ({ token_ids }));
        const rest = { seed, hpcserve_continue: { ...hpcserve_continue, choices: begun } };
        const whole = await worker.post(path, { ...request, ...rest });
        expect({ cut, ...withoutCallIds(whole, choices) }).toEqual({ cut, ...undisturbed });
        expect(whole.text).toContain(`"id":"${events[0]!.id}"`);
      }
    },
  );

  it('echoes its prompt where it comes whole', async () => {
    const request = { model: 'm', prompt: 'Once upon', echo: true, max_tokens: 12, seed: 8 };
    const events = (await worker.stream(text, request, header)) as Event[];
    const { seed, hpcserve_continue } = continueFrom(events.slice(0, 4), 1);
    const begun = hpcserve_continue.choices.map(({ token_ids }) => ({ token_ids }));
    const rest = { seed, hpcserve_continue: { ...hpcserve_continue, choices: begun } };
    const { choices } = withoutCallIds(await worker.post(text, { ...request, ...rest }), 1);
    expect(choices).toEqual(withoutCallIds(await worker.post(text, request), 1).choices);
    expect(JSON.stringify(choices)).toContain('Once upon');
  });

  it('log probabilities of text that is withheld for a stop string are not lost', async () => {
    const free = { model: 'm', messages, max_tokens: 24, seed: 3, logprobs: true };
    const full = read((await worker.stream(chat, free)) as Event[], 1).whole[0]!.text;
    // Begins like what is said, from its third character on, and never ends so: withheld for many tokens.
    const stop = `${full.slice(2, 40)}\u0000`;
    const request = { ...free, stop, stream_options: { include_usage: true } };
    const events = (await worker.stream(chat, request, header)) as Event[];
    const undisturbed = read(events, 1);
    const cuts = events.flatMap(({ hpcserve_withheld }, index) => (hpcserve_withheld ? [index + 1] : []));
    expect(cuts.length).toBeGreaterThan(0);
    for (const cut of cuts) {
      const got = events.slice(0, cut);
      const rest = (await worker.stream(chat, { ...request, ...continueFrom(got, 1) }, header)) as Event[];
      expect(read([...got, ...rest], 1)).toEqual(undisturbed);
    }
  });

  it('another prompt is refused, not continued', async () => {
    const request = { model: 'm', messages, max_tokens: 8, seed: 3 };
    const got = ((await worker.stream(chat, request, header)) as Event[]).slice(0, 3);
    const other = [{ role: 'user', content: 'Something else.' }];
    const answer = await worker.post(chat, { ...request, messages: other, ...continueFrom(got, 1) });
    expect(answer.status).toBe(400);
    expect(answer.text).toContain('digest');
  });
});
