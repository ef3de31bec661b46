/** Clients of the bench: OpenAI's own, streaming, each with one request at a time. */
import OpenAI from 'openai';

/** Who is asked: one URL, or several in turn. */
export interface Endpoint {
  urls: readonly string[];
  key: string;
  model: string;
}

export interface Load {
  clients: number;
  requests: number;
  prompt_tokens: number;
  answer_tokens: number;
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

let asked = 0;

/** @throws Error: a request failed, or its answer has another length than it was asked for */
export async function put({ urls, key, model }: Endpoint, load: Load): Promise<LoadOutcome> {
  const openais = urls.map(
    (baseURL) => new OpenAI({ baseURL, apiKey: key, maxRetries: 0, timeout: 600_000 }),
  );
  const ttft_ms: number[] = [];
  let left = load.requests;
  let tokens = 0;
  const began_ms = performance.now();
  const client = async (index: number): Promise<void> => {
    while (left-- > 0) {
      const asked_ms = performance.now();
      let first_ms: number | undefined;
      const chunks = await openais[index % openais.length]!.completions.create({
        model,
        prompt: promptOf(1_000_000 + asked++, load.prompt_tokens),
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
