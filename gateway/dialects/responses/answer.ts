import type { OpenAiError } from '../../../spec/wire.ts';
import { newId } from '../../kept/sealed-folder.ts';
import type { AnswerPart, ChatEnd, ChatUsage, Members } from '../chat-form.ts';
import { type AnswerHead, type DialectAnswer, typedEvent } from '../dialect.ts';

/** An item of the output that is being told: it is closed when another begins. */
interface OpenItem {
  item: Members;
  /** What its texts are told by: of the item itself, or of its only part. */
  told: 'output_text' | 'reasoning_text' | 'function_call_arguments';
  text: string;
}

const id = (prefix: string): string => newId(`${prefix}_`);

/**
 * An answer of OpenAI's responses API: a list of items (reasoning, message, function calls), each told by events from
 * its first word to its last, and all of them again in `response.completed`.
 */
export class ResponsesAnswer implements DialectAnswer {
  readonly stream_type = 'text/event-stream; charset=utf-8';
  readonly #request: Members;
  readonly #keep: ((response: Members) => Promise<void>) | undefined;
  readonly #id = id('resp');
  #head: AnswerHead = { model: '', created_s: 0 };
  #sequence = 0;
  readonly #output: Members[] = [];
  #open: OpenItem | undefined;
  #calls = new Map<number, OpenItem>();
  #finish: ChatEnd = 'stop';
  #usage: ChatUsage | undefined;
  #status: 'in_progress' | 'completed' | 'incomplete' | 'failed' = 'in_progress';
  #error: OpenAiError['error'] | undefined;
  #kept: Promise<void> | undefined;

  /** @param keep takes the answer at its end; absent: it is not kept */
  constructor(request: Members, keep?: (response: Members) => Promise<void>) {
    this.#request = request;
    this.#keep = keep;
  }

  comment(text: string): string {
    return `: ${text}\n\n`;
  }

  begin(head: AnswerHead): string {
    this.#head = head;
    const response = this.whole();
    return this.#event('response.created', { response }) + this.#event('response.in_progress', { response });
  }

  take(part: AnswerPart): string {
    switch (part.kind) {
      case 'reasoning':
        return this.#text('reasoning_text', part.text);
      case 'text':
        return this.#text('output_text', part.text);
      case 'tool':
        return this.#call(part);
      case 'arguments':
        return this.#arguments(part.index, part.text);
      case 'finish':
        this.#finish = part.reason;
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
    this.#status = this.#cut === undefined ? 'completed' : 'incomplete';
    const response = this.whole();
    this.#kept = this.#keep?.(response);
    return closed + this.#event(`response.${this.#status}`, { response });
  }

  get kept(): Promise<void> | undefined {
    return this.#kept;
  }

  fail(error: OpenAiError['error']): string {
    this.#status = 'failed';
    this.#error = error;
    // The official clients raise what has a member `error`.
    return (
      this.#event('response.failed', { response: this.whole() }) +
      this.#event('error', { code: error.code, message: error.message, param: error.param, error })
    );
  }

  whole(): Members {
    const { metadata, instructions, max_output_tokens, previous_response_id, reasoning } = this.#request;
    const { parallel_tool_calls, temperature, text, tool_choice, tools, top_p, truncation, user } =
      this.#request;
    const completed_s = this.#status === 'completed' ? Math.floor(Date.now() / 1000) : null;
    return {
      id: this.#id,
      object: 'response',
      created_at: this.#head.created_s,
      completed_at: completed_s,
      status: this.#status,
      background: false,
      error: this.#error ? { code: 'server_error', message: this.#error.message } : null,
      incomplete_details: this.#status === 'incomplete' ? { reason: this.#cut } : null,
      instructions: instructions ?? null,
      max_output_tokens: max_output_tokens ?? null,
      metadata: metadata ?? {},
      model: this.#head.model,
      output: this.#status === 'in_progress' ? [] : [...this.#output],
      parallel_tool_calls: parallel_tool_calls ?? true,
      previous_response_id: previous_response_id ?? null,
      reasoning: { effort: null, summary: null, ...(reasoning as Members | null | undefined) },
      store: this.#keep !== undefined,
      temperature: temperature ?? null,
      text: { format: { type: 'text' }, ...(text as Members | null | undefined) },
      tool_choice: tool_choice ?? 'auto',
      tools: tools ?? [],
      top_p: top_p ?? null,
      truncation: truncation ?? 'disabled',
      usage: this.#usage && this.#status !== 'in_progress' ? usageOf(this.#usage) : null,
      user: user ?? null,
    };
  }

  /** Why the answer is not all that it could have been. */
  get #cut(): 'max_output_tokens' | 'content_filter' | undefined {
    if (this.#finish === 'length') return 'max_output_tokens';
    return this.#finish === 'content_filter' ? 'content_filter' : undefined;
  }

  #event(type: string, data: Members): string {
    return typedEvent(type, { ...data, sequence_number: this.#sequence++ });
  }

  #text(told: 'output_text' | 'reasoning_text', delta: string): string {
    let begun = '';
    if (this.#open?.told !== told) {
      begun = this.#close();
      const item: Members =
        told === 'output_text'
          ? { id: id('msg'), type: 'message', status: 'in_progress', role: 'assistant', content: [] }
          : { id: id('rs'), type: 'reasoning', status: 'in_progress', summary: [], content: [] };
      begun += this.#begin({ item, told, text: '' });
      begun += this.#event('response.content_part.added', { ...this.#at, part: partOf(told, '') });
    }
    const open = this.#open!;
    open.text += delta;
    const more = told === 'output_text' ? { logprobs: [] } : {};
    return begun + this.#event(`response.${told}.delta`, { ...this.#at, delta, ...more });
  }

  #call({ index, id: call_id, name }: { index: number; id: string; name: string }): string {
    const closed = this.#close();
    const item = {
      id: id('fc'),
      type: 'function_call',
      status: 'in_progress',
      ...{ call_id, name, arguments: '' },
    };
    const open: OpenItem = { item, told: 'function_call_arguments', text: '' };
    this.#calls.set(index, open);
    return closed + this.#begin(open);
  }

  #arguments(index: number, delta: string): string {
    const open = this.#calls.get(index);
    if (!open) return '';
    open.text += delta;
    // Engines tell one call after the other; what comes late of an earlier one is in its item at the end.
    if (open !== this.#open) {
      open.item.arguments = open.text;
      return '';
    }
    return this.#event('response.function_call_arguments.delta', {
      item_id: open.item.id,
      output_index: this.#output.indexOf(open.item),
      delta,
    });
  }

  #begin(open: OpenItem): string {
    this.#open = open;
    this.#output.push(open.item);
    const item = structuredClone(open.item);
    return this.#event('response.output_item.added', { output_index: this.#output.length - 1, item });
  }

  /** Where the open item's only part is. */
  get #at(): Members {
    const { item } = this.#open!;
    return { item_id: item.id, output_index: this.#output.indexOf(item), content_index: 0 };
  }

  #close(): string {
    const open = this.#open;
    if (!open) return '';
    const { item, told, text } = open;
    const output_index = this.#output.indexOf(item);
    let said: string;
    if (told === 'function_call_arguments') {
      // Tools without parameters may be called with nothing.
      item.arguments = text === '' ? '{}' : text;
      const { name, arguments: all } = item;
      said = this.#event(`response.${told}.done`, { item_id: item.id, output_index, name, arguments: all });
    } else {
      const part = partOf(told, text);
      item.content = [part];
      const more = told === 'output_text' ? { logprobs: [] } : {};
      said =
        this.#event(`response.${told}.done`, { ...this.#at, text, ...more }) +
        this.#event('response.content_part.done', { ...this.#at, part });
    }
    item.status = this.#cut === undefined ? 'completed' : 'incomplete';
    this.#open = undefined;
    return said + this.#event('response.output_item.done', { output_index, item });
  }
}

function partOf(told: 'output_text' | 'reasoning_text', text: string): Members {
  return told === 'output_text' ? { type: told, text, annotations: [], logprobs: [] } : { type: told, text };
}

function usageOf({ prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens }: ChatUsage): Members {
  return {
    input_tokens: prompt_tokens,
    input_tokens_details: { cached_tokens },
    output_tokens: completion_tokens,
    output_tokens_details: { reasoning_tokens },
    total_tokens: prompt_tokens + completion_tokens,
  };
}
