/** A streamed answer as an application has it, by OpenAI's own client. */
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import type { Answer } from './outcome.ts';

export interface Endpoint {
  /** With `/v1`. */
  url: string;
  key: string;
  model: string;
}

/** A client that hears nothing for so long gives up. Lower: an engine that is only slow counts as lost. */
const silence_ms = 60_000;

/** One greedy answer of a fixed length, read from its beginning until it ends in whatever way. */
export class LiveStream {
  /** Events with text so far. */
  events = 0;
  /** Which replica answers, where the server says so. */
  session: string | undefined;
  readonly answer: Promise<Answer>;
  #ended = false;

  constructor(endpoint: Endpoint, prompt: string, tokens: number) {
    this.answer = this.#read(endpoint, prompt, tokens).finally(() => {
      this.#ended = true;
    });
  }

  /** Resolves once so many events have come. @throws Error where it ended before */
  async until(events: number): Promise<void> {
    while (this.events < events) {
      if (this.#ended) {
        const { error = 'in order', text } = await this.answer;
        throw new Error(
          `an answer ended after ${this.events} of ${events} events (${text.length} characters): ${error}`,
        );
      }
      await sleep(5);
    }
  }

  async #read({ url, key, model }: Endpoint, prompt: string, tokens: number): Promise<Answer> {
    const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 10 * silence_ms });
    const silent = new AbortController();
    const limit = setTimeout(() => silent.abort(), silence_ms);
    const answer: Answer = { text: '', finished: false, pause_ms: 0 };
    let last_ms = performance.now();
    const heard = (): void => {
      const now_ms = performance.now();
      answer.pause_ms = Math.max(answer.pause_ms, now_ms - last_ms);
      last_ms = now_ms;
      limit.refresh();
    };
    try {
      const { data, response } = await client.chat.completions
        .create(
          {
            model,
            messages: [{ role: 'user', content: prompt }],
            max_tokens: tokens,
            temperature: 0,
            stream: true,
            ...{ ignore_eos: true },
          },
          { signal: silent.signal },
        )
        .withResponse();
      this.session = response.headers.get('x-hpcserve-session') ?? undefined;
      for await (const { choices } of data) {
        const [choice] = choices;
        if (choice === undefined) continue;
        if (choice.delta.content) {
          // What comes before the first word is no pause in it.
          if (this.events++ === 0) last_ms = performance.now();
          heard();
          answer.text += choice.delta.content;
        }
        answer.finished ||= typeof choice.finish_reason === 'string';
      }
      heard();
    } catch (error) {
      heard();
      answer.error = wordsOf(error);
    } finally {
      clearTimeout(limit);
    }
    // The client takes the end of its own signal for an end in order.
    if (silent.signal.aborted) answer.error = `no word for ${silence_ms / 1000} s`;
    return answer;
  }
}

/** The client says “Connection error”, and its cause what it was. */
function wordsOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause === undefined ? error.message : `${error.message} (${wordsOf(error.cause)})`;
}
