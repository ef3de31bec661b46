import { randomUUID } from 'node:crypto';
import type { OpenAiError } from '../../../spec/wire.ts';
import type { AnswerPart, ChatEnd, ChatUsage, Members } from '../chat-form.ts';
import { type AnswerHead, type DialectAnswer, typedEvent } from '../dialect.ts';

/** A block of the content: it is closed when another begins. */
interface OpenBlock {
  block: Members;
  index: number;
  /** Of a call, whose input is an object only when all of it is there. */
  input: string;
}

const stopReasons: Readonly<Record<ChatEnd, string>> = {
  stop: 'end_turn',
  length: 'max_tokens',
  tool_calls: 'tool_use',
  content_filter: 'refusal',
};

/** An answer of Anthropic's messages API: blocks of thinking, text and calls, each told from its start to its stop. */
export class MessagesAnswer implements DialectAnswer {
  readonly stream_type = 'text/event-stream; charset=utf-8';
  readonly #id = `msg_${randomUUID().replaceAll('-', '')}`;
  #model = '';
  readonly #content: Members[] = [];
  #open: OpenBlock | undefined;
  #finish: ChatEnd | undefined;
  #stop: string | undefined;
  #usage: ChatUsage | undefined;

  comment(): string {
    return typedEvent('ping', {});
  }

  begin({ model }: AnswerHead): string {
    this.#model = model;
    return typedEvent('message_start', { message: this.whole() });
  }

  take(part: AnswerPart): string {
    switch (part.kind) {
      case 'reasoning':
        return this.#text('thinking', part.text);
      case 'text':
        return this.#text('text', part.text);
      case 'tool':
        return this.#begin({ type: 'tool_use', id: part.id, name: part.name, input: {} });
      case 'arguments':
        return this.#input(part.text);
      case 'finish':
        this.#finish = part.reason;
        this.#stop = part.stop;
        return '';
      case 'usage':
        this.#usage = part.usage;
        return '';
      default:
        return part satisfies never;
    }
  }

  end(): string {
    const closed = this.#close();
    const { stop_reason, stop_sequence, usage } = this.whole();
    return (
      closed +
      typedEvent('message_delta', { delta: { stop_reason, stop_sequence }, usage }) +
      typedEvent('message_stop', {})
    );
  }

  fail({ message }: OpenAiError['error']): string {
    return typedEvent('error', { error: { type: 'api_error', message } });
  }

  whole(): Members {
    const { prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0 } = this.#usage ?? {};
    const stop_reason = this.#finish === undefined ? null : stopReasons[this.#finish];
    return {
      id: this.#id,
      type: 'message',
      role: 'assistant',
      model: this.#model,
      content: [...this.#content],
      stop_reason: this.#stop === undefined ? stop_reason : 'stop_sequence',
      stop_sequence: this.#stop ?? null,
      usage: {
        // Here they exclude each other.
        input_tokens: prompt_tokens - cached_tokens,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached_tokens,
        output_tokens: completion_tokens,
      },
    };
  }

  #text(type: 'thinking' | 'text', text: string): string {
    let begun = '';
    if (this.#open?.block.type !== type)
      begun = this.#begin(type === 'text' ? { type, text: '' } : { type, thinking: '', signature: '' });
    const { block, index } = this.#open!;
    block[type] += text;
    const delta = type === 'text' ? { type: 'text_delta', text } : { type: 'thinking_delta', thinking: text };
    return begun + typedEvent('content_block_delta', { index, delta });
  }

  #input(partial_json: string): string {
    if (this.#open?.block.type !== 'tool_use') return '';
    this.#open.input += partial_json;
    const delta = { type: 'input_json_delta', partial_json };
    return typedEvent('content_block_delta', { index: this.#open.index, delta });
  }

  #begin(block: Members): string {
    const closed = this.#close();
    const index = this.#content.push(block) - 1;
    this.#open = { block, index, input: '' };
    return closed + typedEvent('content_block_start', { index, content_block: { ...block } });
  }

  #close(): string {
    const open = this.#open;
    if (!open) return '';
    this.#open = undefined;
    const { block, index, input } = open;
    if (block.type === 'tool_use') block.input = inputOf(input);
    return typedEvent('content_block_stop', { index });
  }
}

/** Of an answer that was cut in the middle of a call, the input is no JSON: there is nothing to call it with. */
function inputOf(text: string): unknown {
  try {
    return text === '' ? {} : JSON.parse(text);
  } catch {
    return {};
  }
}
