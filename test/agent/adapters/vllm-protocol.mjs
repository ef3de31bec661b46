// Answers as vLLM 0.32 was recorded to: completions and chats, streamed or not, with the ids of their tokens, usage in
// each chunk, several tokens in one, stop strings, and parsers of reasoning and tool calls; and it spells tokens. The
// model behind it is a function of all ids before: one byte a token, of which half are no UTF-8. What vLLM would refuse
// it refuses, and so every member of a request that it does not know.
const eos = 256;
const lossy = new TextDecoder('utf-8', { fatal: false, ignoreBOM: true });
const replacement = '\ufffd';

const shared = [
  'model',
  'stream',
  'stream_options',
  'max_tokens',
  'n',
  'stop',
  'temperature',
  'top_k',
  'seed',
  'min_tokens',
];
const more = [
  'logprobs',
  'return_token_ids',
  'presence_penalty',
  'cache_salt',
  'include_stop_str_in_output',
  'echo',
];
const known = {
  '/v1/completions': new Set([...shared, ...more, 'prompt']),
  '/v1/chat/completions': new Set([
    ...[...shared, ...more, 'messages', 'max_completion_tokens', 'top_logprobs', 'tools', 'tool_choice'],
    ...['continue_final_message', 'add_generation_prompt', 'response_format'],
  ]),
};

export const decode = (ids) => lossy.decode(Uint8Array.from(ids.filter((id) => id !== eos)));
export const encode = (text) => [...Buffer.from(text)];

/** Bytes as they come; half of the texts are none. */
function byteModel(ids) {
  let state = 2166136261;
  for (const id of ids) state = Math.imul(state ^ id, 16777619) >>> 0;
  state = Math.imul(state ^ (state >>> 15), 2246822519) >>> 0;
  return (state ^ (state >>> 13)) & 255;
}

/** Letters alone. */
export const letterModel = (ids) => 97 + (byteModel(ids) % 26);

/** Letters that are drawn: what comes depends on the seed, and on how many were drawn since the request began. */
export const drawnModel = (ids, draw) => letterModel([...ids, draw & 255, draw >>> 8]);

/** Says one of these texts, whichever the prompt names, and ends. */
export function scriptedModel(scripts) {
  return (ids) => {
    const text = Buffer.from(ids).toString('latin1');
    const begin = text.lastIndexOf('assistant: ') + 'assistant: '.length;
    const name = Object.keys(scripts).find((each) => text.slice(0, begin).includes(each));
    return Buffer.from(scripts[name])[ids.length - begin] ?? eos;
  };
}

/** Hugging Face's `DecodeStream` (tokenizers 0.22), as vLLM begins it with the ids of the prompt. */
class DecodeStream {
  #ids;
  #prefix = '';
  #prefix_index = 0;

  constructor(ids) {
    this.#ids = [...ids];
  }

  step(id) {
    if (this.#prefix === '' && this.#ids.length > 0) {
      const prefix = decode(this.#ids);
      if (!prefix.endsWith(replacement)) {
        this.#prefix = prefix;
        this.#prefix_index = this.#ids.length;
      }
    }
    this.#ids.push(id);
    const text = decode(this.#ids);
    if (text.length <= this.#prefix.length || text.endsWith(replacement)) return '';
    const fresh = text.slice(this.#prefix.length);
    const index = this.#ids.length - this.#prefix_index;
    this.#ids = this.#ids.slice(this.#prefix_index);
    this.#prefix = decode(this.#ids);
    this.#prefix_index = index;
    return fresh;
  }
}

/** One answer to one prompt while it is computed. */
class Sequence {
  constructor(prompt, { stop, min_tokens = 0, include_stop_str_in_output }, { max_tokens, model, seed }) {
    this.prompt = prompt;
    this.seed = seed;
    this.ids = [];
    this.finish_reason = null;
    this.stop_reason = null;
    this.text = '';
    this.given = 0;
    this.stops = [stop ?? []].flat();
    this.min_tokens = min_tokens;
    this.included = include_stop_str_in_output === true;
    this.max_tokens = max_tokens;
    this.model = model;
    this.decoder = new DecodeStream(prompt);
  }

  step() {
    const draw = Math.imul(this.seed + 1, 40503) + Math.imul(this.ids.length, 2531);
    const id = this.model([...this.prompt, ...this.ids], draw & 65535);
    this.ids.push(id);
    if (id === eos) this.finish_reason = 'stop';
    else {
      this.text += this.decoder.step(id);
      if (this.ids.length > this.min_tokens) this.#checkStops();
    }
    if (this.finish_reason === null && this.ids.length >= this.max_tokens) this.finish_reason = 'length';
  }

  #checkStops() {
    for (const stop of this.stops) {
      const at = this.text.indexOf(stop);
      if (at === -1) continue;
      this.text = this.text.slice(0, this.included ? at + stop.length : at);
      this.finish_reason = 'stop';
      this.stop_reason = stop;
      return;
    }
  }

  /** What may be sent of its text and was not. */
  delta() {
    const held =
      this.finish_reason === null && !this.included
        ? Math.max(0, ...this.stops.map(({ length }) => length - 1))
        : 0;
    const end = Math.max(this.given, this.text.length - held);
    const delta = this.text.slice(this.given, end);
    this.given = end;
    return delta;
  }
}

/** What parsers see in a text: `<think>…</think>` and `<tool_call>name(arguments)</tool_call>`. */
function parsedText(text, { reasoning, tools }) {
  const seen = { reasoning: '', content: '', calls: [] };
  let rest = text;
  if (reasoning) {
    rest = rest.replace(/^<think>/, '');
    if ('<think>'.startsWith(text)) return seen;
    const end = rest.indexOf('</think>');
    seen.reasoning = end === -1 ? withoutBeginning(rest, '</think>') : rest.slice(0, end);
    if (end === -1) return seen;
    rest = rest.slice(end + '</think>'.length);
  }
  if (!tools) return { ...seen, content: rest };
  const [content, ...calls] = rest.split('<tool_call>');
  seen.content = calls.length === 0 ? withoutBeginning(content, '<tool_call>') : content;
  for (const call of calls) {
    const open = call.indexOf('(');
    if (open === -1) continue;
    const whole = call.slice(open + 1).split(')</tool_call>');
    const said = whole.length > 1 ? whole[0] : withoutBeginning(whole[0], ')</tool_call>');
    seen.calls.push({ name: call.slice(0, open), arguments: said });
  }
  return seen;
}

function withoutBeginning(text, mark) {
  for (let length = mark.length - 1; length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return text.slice(0, -length);
  return text;
}

/** The difference of two such, as a delta; undefined where there is none. */
function deltaOf(before, after, callId) {
  const delta = {};
  if (after.reasoning.length > before.reasoning.length)
    delta.reasoning = after.reasoning.slice(before.reasoning.length);
  if (after.content.length > before.content.length)
    delta.content = after.content.slice(before.content.length);
  const calls = after.calls.flatMap((call, index) => {
    const old = before.calls[index];
    if (!old) return [{ index, id: callId(), type: 'function', function: { ...call } }];
    const fresh = call.arguments.slice(old.arguments.length);
    return fresh === '' ? [] : [{ index, function: { arguments: fresh } }];
  });
  if (calls.length > 0) delta.tool_calls = calls;
  return Object.keys(delta).length > 0 ? delta : undefined;
}

/**
 * One engine.
 *
 * - `model`: the next id, of all before and of a draw
 * - `context_tokens`: as `--max-model-len`
 * - `chunk_tokens`: how many tokens the next chunk carries, of how many were made
 * - `gives_ids`: whether it is new enough to give ids
 * - `heeds_seed`: whether a seed makes the same draws again
 * - `parsers`: which it was started with, `reasoning` and `tools`
 * - `loses`: whether the connection breaks, of how many tokens were made of the answer
 */
export class VllmProtocol {
  constructor({
    model = byteModel,
    context_tokens = 2048,
    chunk_tokens = () => 1,
    gives_ids = true,
    heeds_seed = true,
    parsers = {},
    loses = () => false,
  }) {
    Object.assign(this, { model, context_tokens, chunk_tokens, gives_ids, heeds_seed, parsers, loses });
    this.answers = 0;
  }

  /** Answers what it knows a path for. */
  async answer({ path, body }, response) {
    const request = JSON.parse(body);
    const refuse = (message) =>
      response
        .writeHead(400, { 'content-type': 'application/json' })
        .end(JSON.stringify({ error: { message, type: 'BadRequestError', param: null, code: 400 } }));
    if (path === '/detokenize') {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ prompt: decode(request.tokens) }));
      return;
    }
    const unknown = Object.keys(request).find((name) => request[name] !== null && !known[path]?.has(name));
    if (unknown !== undefined) return refuse(`${path} has no ${unknown}`);
    if (request.n > 1 && request.temperature === 0) return refuse('n must be 1 when using greedy sampling');
    const isChat = path === '/v1/chat/completions';
    if (isChat && request.tools?.length > 0 && !this.parsers.tools)
      return refuse('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set');
    const prompts = isChat ? [encode(rendered(request))] : promptsOf(request.prompt);
    const asked = isChat
      ? (request.max_completion_tokens ?? request.max_tokens)
      : request.max_tokens === undefined
        ? 16
        : request.max_tokens;
    for (const { length } of prompts)
      if (length + (asked ?? 1) > this.context_tokens)
        return refuse(`max_tokens is too large: ${asked} beside ${length} of ${this.context_tokens}`);
    const limit = (prompt) => asked ?? this.context_tokens - prompt.length;
    const seed = this.heeds_seed ? request.seed : undefined;
    const sequences = prompts.flatMap((prompt) =>
      Array.from({ length: request.n ?? 1 }, (_, index) => {
        const own = {
          max_tokens: limit(prompt),
          model: this.model,
          seed: (seed ?? 1000 * this.answers) + index,
        };
        return new Sequence(prompt, request, own);
      }),
    );
    await this.#stream({ request, isChat, sequences, prompts, response });
  }

  async #stream({ request, isChat, sequences, prompts, response }) {
    const number = this.answers++;
    const head = {
      id: `${isChat ? 'chatcmpl' : 'cmpl'}-${number}`,
      object: isChat ? 'chat.completion.chunk' : 'text_completion',
      created: 1000 + number,
      model: request.model,
    };
    const { include_usage = false, continuous_usage_stats = false } = request.stream_options ?? {};
    const continuous = include_usage && continuous_usage_stats;
    const ids = this.gives_ids && request.return_token_ids === true;
    const send = (chunk) =>
      new Promise((resolve) => response.write(`data: ${JSON.stringify(chunk)}\n\n`, () => resolve()));
    const usage = (prompt_tokens, completion_tokens) => ({
      prompt_tokens,
      total_tokens: prompt_tokens + completion_tokens,
      completion_tokens,
    });
    const stream = { request, isChat, head, ids, continuous, send, usage, prompts };
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    if (isChat) await this.#roles(stream, sequences);
    if (!(await this.#chunks(stream, sequences))) {
      response.destroy();
      return;
    }
    const prompt_tokens = prompts.reduce((sum, { length }) => sum + length, 0);
    const made = sequences.reduce((sum, sequence) => sum + sequence.ids.length, 0);
    if (include_usage) await send({ ...head, choices: [], usage: usage(prompt_tokens, made) });
    response.end('data: [DONE]\n\n');
  }

  async #roles({ head, ids, continuous, send, usage, prompts }, sequences) {
    for (const index of sequences.keys())
      await send({
        ...head,
        choices: [{ index, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }],
        ...(continuous && { usage: usage(prompts[0].length, 0) }),
        prompt_token_ids: ids ? prompts[0] : null,
      });
  }

  /** Round by round, a chunk of each. Returns whether it came to an end. */
  async #chunks(stream, sequences) {
    const states = sequences.map(() => ({ seen: { reasoning: '', content: '', calls: [] }, begun: false }));
    for (let made = 0; sequences.some(({ finish_reason }) => finish_reason === null); ) {
      const steps = this.chunk_tokens(made);
      made += steps;
      for (const [index, sequence] of sequences.entries()) {
        if (sequence.finish_reason !== null) continue;
        const before = sequence.ids.length;
        for (let step = 0; step < steps && sequence.finish_reason === null; step++) sequence.step();
        await this.#chunk(stream, sequence, { index, before, state: states[index] });
        if (this.loses(sequence.ids.length, index)) return false;
      }
    }
    return true;
  }

  async #chunk({ request, isChat, head, ids, continuous, send, usage }, sequence, { index, before, state }) {
    const token_ids = sequence.ids.slice(before);
    const choice = { index };
    const text = sequence.delta();
    let { finish_reason } = sequence;
    if (isChat && (this.parsers.reasoning || request.tools)) {
      const seen = parsedText(sequence.text, { reasoning: this.parsers.reasoning, tools: request.tools });
      const delta = deltaOf(state.seen, seen, () => `call-${head.id}-${Math.random()}`);
      state.seen = seen;
      // Nothing is told of tokens that a parser holds back, unless ids are asked for.
      if (!delta && finish_reason === null && !ids) return;
      choice.delta = delta ?? {};
      if (finish_reason === 'stop' && seen.calls.length > 0) finish_reason = 'tool_calls';
    } else if (isChat) choice.delta = { content: text };
    else choice.text = text;
    choice.logprobs = logprobsOf(request, isChat, token_ids, sequence.given - text.length);
    choice.finish_reason = finish_reason;
    if (!isChat || finish_reason !== null) choice.stop_reason = sequence.stop_reason;
    if (!isChat) choice.prompt_token_ids = ids && !state.begun ? sequence.prompt : null;
    choice.token_ids = ids ? token_ids : null;
    state.begun = true;
    const chunk = { ...head, choices: [choice] };
    if (continuous) chunk.usage = usage(sequence.prompt.length, sequence.ids.length);
    await send(chunk);
  }
}

function rendered({ messages, continue_final_message, add_generation_prompt = true }) {
  const text = messages.map(({ role, content }) => `${role}: ${content}\n`).join('');
  if (continue_final_message) return text.slice(0, -1);
  return add_generation_prompt ? `${text}assistant: ` : text;
}

function promptsOf(prompt) {
  if (typeof prompt === 'string') return [encode(prompt)];
  if (typeof prompt[0] === 'number') return [prompt];
  return prompt.map((each) => (typeof each === 'string' ? encode(each) : each));
}

function logprobsOf({ logprobs }, isChat, ids, offset) {
  if (logprobs === undefined || logprobs === null || logprobs === false) return null;
  const tokens = ids.map((id) => decode([id]));
  const token_logprobs = ids.map((id) => -id / 256);
  if (isChat)
    return {
      content: tokens.map((token, at) => ({
        token,
        logprob: token_logprobs[at],
        bytes: [...Buffer.from(token)],
        top_logprobs: [],
      })),
    };
  return {
    text_offset: tokens.map(() => offset),
    token_logprobs,
    tokens,
    top_logprobs: tokens.map(() => ({})),
  };
}
