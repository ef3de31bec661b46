/** Clients of the bench: OpenAI's own, streaming, each with one request at a time. */
import OpenAI from 'openai';
import { Agent, fetch, type RequestInit } from 'undici';

/** A server: a URL, and the unix socket where it listens on none of the network's addresses. */
export interface Server {
  url: string;
  key: string;
  socket?: string;
}

/** Who is asked: one server, or several in turn. */
export interface Endpoint {
  servers: readonly Server[];
  model: string;
}

export interface Load {
  clients: number;
  requests: number;
  prompt_tokens: number;
  answer_tokens: number;
  /** Prompts are token ids, which any model of such a vocabulary has; default: text of a character a token. */
  vocabulary?: number;
}

export interface LoadOutcome {
  /** Of all clients together, from the first question to the last answer. */
  tokens_per_s: number;
  /** Of each request, in the order of their ends. */
  ttft_ms: number[];
}

/** A prompt that no other one begins like: nothing of it is in a prefix cache. One character is one token. */
function promptOf(serial: number, tokens: number): string {
  return `${serial} `.repeat(Math.ceil(tokens / 2)).slice(0, tokens);
}

/** Token ids with the same promise; special tokens are before or behind them. */
function idsOf(serial: number, tokens: number, vocabulary: number): number[] {
  const [first, count] = [vocabulary >> 3, vocabulary >> 1];
  return Array.from({ length: tokens }, (_, at) => first + ((serial * 7919 + at * 104_729) % count));
}

/** The same client for both sides; connections are kept, as any client keeps them. */
function clientOf({ url, key, socket }: Server): OpenAI {
  const dispatcher = new Agent(socket === undefined ? {} : { connect: { socketPath: socket } });
  return new OpenAI({
    baseURL: url,
    apiKey: key,
    maxRetries: 0,
    timeout: 600_000,
    fetch: ((input: string, init: RequestInit) =>
      fetch(input, { ...init, dispatcher })) as unknown as typeof globalThis.fetch,
  });
}

const clientsOf = new WeakMap<Server, OpenAI>();
let asked = 0;

/** @throws Error: a request failed, or its answer has another length than it was asked for */
export async function put({ servers, model }: Endpoint, load: Load): Promise<LoadOutcome> {
  const openais = servers.map((server) => {
    const kept = clientsOf.get(server) ?? clientOf(server);
    clientsOf.set(server, kept);
    return kept;
  });
  const ttft_ms: number[] = [];
  let left = load.requests;
  let tokens = 0;
  const began_ms = performance.now();
  const client = async (index: number): Promise<void> => {
    while (left-- > 0) {
      const serial = 1_000_000 + asked++;
      const asked_ms = performance.now();
      let first_ms: number | undefined;
      const chunks = await openais[index % openais.length]!.completions.create({
        model,
        prompt:
          load.vocabulary === undefined
            ? promptOf(serial, load.prompt_tokens)
            : idsOf(serial, load.prompt_tokens, load.vocabulary),
        max_tokens: load.answer_tokens,
        temperature: 0,
        stream: true,
        stream_options: { include_usage: true },
        ...{ ignore_eos: true },
      });
      let answered = 0;
      for await (const { choices, usage } of chunks) {
        if (choices.length > 0) first_ms ??= performance.now() - asked_ms;
        answered = usage?.completion_tokens ?? answered;
      }
      if (answered !== load.answer_tokens)
        throw new Error(`an answer of ${load.answer_tokens} tokens has ${answered}`);
      ttft_ms.push(first_ms!);
      tokens += answered;
    }
  };
  await Promise.all(Array.from({ length: load.clients }, (_, index) => client(index)));
  return { tokens_per_s: (1000 * tokens) / (performance.now() - began_ms), ttft_ms };
}
