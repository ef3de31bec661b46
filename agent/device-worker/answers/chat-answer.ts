import { randomUUID } from 'node:crypto';
import { continuation } from '../../../spec/wire.ts';
import { type AnswerDelta, type AnswerForm, OutputParser } from '../../text/output/output-parser.ts';
import type { PieceSource } from '../../text/vocabulary.ts';
import { type ChatLogprob, chatLogprobs } from './logprobs.ts';
import type { TextEvent } from './text-stream.ts';

interface ToolCall {
  id: string;
  type: 'function';
  function: { name: string; arguments: string };
}

/** What one event adds to a choice, in the form of OpenAI's chunks. */
export interface ChatDelta {
  delta: Record<string, unknown>;
  logprobs: { content: ChatLogprob[]; refusal: null } | null;
  token_ids: number[];
  finish?: string;
  empty: boolean;
}

type CallDelta = { index?: number; function: { name?: string; arguments: string } };

/** How a chat's answer is written. */
export interface ChatForm extends AnswerForm {
  /** One call, as `function_call`, in the form before `tool_calls`. */
  as_function: boolean;
}

/** One choice of a chat completion as it grows. */
export class ChatChoice {
  readonly index: number;
  readonly #parser: OutputParser;
  readonly #pieces: PieceSource;
  readonly #logprobs: boolean;
  readonly #as_function: boolean;
  #content = '';
  #reasoning = '';
  readonly #calls: ToolCall[] = [];
  readonly #entries: ChatLogprob[] = [];
  readonly #token_ids: number[] = [];
  #finishReason: string | null = null;

  constructor(index: number, form: ChatForm, pieces: PieceSource, logprobs: boolean) {
    this.index = index;
    this.#parser = new OutputParser(form);
    this.#pieces = pieces;
    this.#logprobs = logprobs;
    this.#as_function = form.as_function;
  }

  get token_ids(): readonly number[] {
    return this.#token_ids;
  }

  take(event: TextEvent): ChatDelta {
    // The end of an answer that was complete when it was handed over: its text is out.
    if (this.#finishReason !== null)
      return { delta: {}, logprobs: null, token_ids: [], finish: this.#finishReason, empty: true };
    const parsed = this.#parse(event);
    const calls = parsed.tool_calls.map(({ index, name, arguments: text }) => {
      if (name === undefined) {
        this.#calls[index]!.function.arguments += text;
        return { index, function: { arguments: text } };
      }
      const id = `call_${randomUUID().replaceAll('-', '').slice(0, 24)}`;
      const call: ToolCall = { id, type: 'function', function: { name, arguments: text } };
      this.#calls[index] = structuredClone(call);
      return { index, ...call };
    });
    this.#content += parsed.content;
    this.#reasoning += parsed.reasoning;
    const entries = this.#logprobs ? chatLogprobs(event.tokens, this.#pieces) : [];
    this.#entries.push(...entries);
    this.#token_ids.push(...event.token_ids);
    if (event.finish !== undefined)
      this.#finishReason = this.#endedByCalls(event.finish) ? this.#endOfCalls : event.finish;
    const delta = {
      ...(parsed.reasoning === '' ? {} : { reasoning_content: parsed.reasoning }),
      ...(parsed.content === '' ? {} : { content: parsed.content }),
      ...this.#called(calls),
    };
    return {
      delta,
      logprobs: entries.length === 0 ? null : { content: entries, refusal: null },
      token_ids: event.token_ids,
      empty: Object.keys(delta).length === 0 && entries.length === 0,
      ...(this.#finishReason === null ? {} : { finish: this.#finishReason }),
    };
  }

  /** The whole choice of an answer that is not streamed. */
  complete(withTokenIds: boolean): Record<string, unknown> {
    const hasCalls = this.#calls.length > 0;
    return {
      index: this.index,
      message: {
        role: 'assistant',
        content: this.#content === '' && hasCalls ? null : this.#content,
        refusal: null,
        ...(this.#reasoning === '' ? {} : { reasoning_content: this.#reasoning }),
        ...this.#called(this.#calls),
      },
      logprobs: this.#logprobs ? { content: this.#entries, refusal: null } : null,
      finish_reason: this.#finishReason,
      ...(withTokenIds ? { [continuation.token_ids]: this.#token_ids } : {}),
    };
  }

  /** A call that was cut off at the limit is none to be made: the answer ends by its length, as OpenAI's do. */
  #endedByCalls(finish: NonNullable<TextEvent['finish']>): boolean {
    return finish === 'stop' && this.#parser.tool_calls > 0;
  }

  get #endOfCalls(): string {
    return this.#as_function ? 'function_call' : 'tool_calls';
  }

  /** The member that tells of calls, whole or as they grow; of functions only the first is told. */
  #called(calls: readonly CallDelta[]): Record<string, unknown> {
    if (calls.length === 0) return {};
    if (!this.#as_function) return { tool_calls: calls };
    const ofFirst = calls.filter(({ index }, at) => (index ?? at) === 0);
    if (ofFirst.length === 0) return {};
    const text = ofFirst.map((call) => call.function.arguments).join('');
    return { function_call: { ...ofFirst[0]!.function, arguments: text } };
  }

  #parse(event: TextEvent): AnswerDelta {
    const parsed = this.#parser.push(event.text);
    if (event.finish === undefined) return parsed;
    const rest = this.#parser.end();
    return {
      content: parsed.content + rest.content,
      reasoning: parsed.reasoning + rest.reasoning,
      tool_calls: [...parsed.tool_calls, ...rest.tool_calls],
    };
  }
}
