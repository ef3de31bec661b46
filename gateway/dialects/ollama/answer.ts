import type { OpenAiError } from '../../../spec/wire.ts';
import type { AnswerPart, ChatUsage, Members } from '../chat-form.ts';
import type { AnswerHead, DialectAnswer } from '../dialect.ts';

const ns_per_ms = 1e6;

/** An answer of Ollama's: a line of JSON for each step, and a last one that says what was used and how long it took. */
export class OllamaAnswer implements DialectAnswer {
  readonly stream_type = 'application/x-ndjson';
  readonly #of: 'chat' | 'generate';
  readonly #began_ms = performance.now();
  #first_ms: number | undefined;
  #model = '';
  #text = '';
  #thinking = '';
  readonly #calls: { name: string; arguments: string }[] = [];
  readonly #indices = new Map<number, number>();
  #finish = 'stop';
  #usage: ChatUsage | undefined;

  constructor(of: 'chat' | 'generate') {
    this.#of = of;
  }

  begin({ model }: AnswerHead): string {
    this.#model = model;
    return '';
  }

  take(part: AnswerPart): string {
    if (part.kind !== 'finish' && part.kind !== 'usage') this.#first_ms ??= performance.now();
    switch (part.kind) {
      case 'reasoning':
        this.#thinking += part.text;
        return this.#line(this.#said('', part.text));
      case 'text':
        this.#text += part.text;
        return this.#line(this.#said(part.text));
      case 'tool':
        this.#indices.set(part.index, this.#calls.push({ name: part.name, arguments: '' }) - 1);
        return '';
      case 'arguments': {
        const call = this.#calls[this.#indices.get(part.index) ?? -1];
        if (call) call.arguments += part.text;
        return '';
      }
      case 'finish':
        this.#finish = part.reason === 'length' ? 'length' : 'stop';
        return '';
      case 'usage':
        this.#usage = part.usage;
        return '';
      default:
        return part satisfies never;
    }
  }

  end(): string {
    // Calls come whole: their arguments are objects.
    const calls = this.#calls.length === 0 ? '' : this.#line(this.#said('', '', true));
    return calls + this.#line({ ...this.#said(''), ...this.#end() });
  }

  fail({ message }: OpenAiError['error']): string {
    return `${JSON.stringify({ error: message })}\n`;
  }

  whole(): Members {
    return { ...this.#head(), ...this.#said(this.#text, this.#thinking, true), ...this.#end() };
  }

  #head(): Members {
    return { model: this.#model, created_at: new Date().toISOString() };
  }

  #line(said: Members): string {
    return `${JSON.stringify({ ...this.#head(), done: false, ...said })}\n`;
  }

  #said(text: string, thinking = '', withCalls = false): Members {
    const thought = thinking === '' ? {} : { thinking };
    if (this.#of === 'generate') return { response: text, ...thought };
    const calls = withCalls && this.#calls.length > 0 ? { tool_calls: this.#calls.map(callOf) } : {};
    return { message: { role: 'assistant', content: text, ...thought, ...calls } };
  }

  #end(): Members {
    const now_ms = performance.now();
    const first_ms = this.#first_ms ?? now_ms;
    const { prompt_tokens = 0, completion_tokens = 0 } = this.#usage ?? {};
    const ns = (from_ms: number, to_ms: number): number => Math.round((to_ms - from_ms) * ns_per_ms);
    return {
      done: true,
      done_reason: this.#finish,
      total_duration: ns(this.#began_ms, now_ms),
      load_duration: 0,
      prompt_eval_count: prompt_tokens,
      prompt_eval_duration: ns(this.#began_ms, first_ms),
      eval_count: completion_tokens,
      eval_duration: ns(first_ms, now_ms),
    };
  }
}

function callOf({ name, arguments: text }: { name: string; arguments: string }): Members {
  let input: unknown;
  try {
    input = text === '' ? {} : JSON.parse(text);
  } catch {
    // The answer was cut in the middle of the call.
    input = {};
  }
  return { function: { name, arguments: input } };
}
