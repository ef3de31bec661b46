import type { JsonValue } from '../grammar/schema-keywords.ts';
import { longestOverlap } from '../output/stop-strings.ts';
import { CallReader, type CallText } from './call-reader.ts';
import { FunctionCallReader } from './function-call-reader.ts';
import { MarkedCallReader } from './marked-call-reader.ts';
import type { ToolFormat } from './tool-format.ts';

/** A change of one tool call, as OpenAI's stream has it. */
export interface ToolCallDelta {
  index: number;
  /** Given once, with the first delta of a call. */
  name?: string;
  arguments: string;
}

export interface ParsedText {
  content: string;
  tool_calls: ToolCallDelta[];
}

/**
 * Finds tool calls in the text of an answer as it arrives. What turns out not to be a call is passed on as
 * content, so nothing of the answer is lost. What came out depends on the text alone, not on its pieces.
 */
export class CallParser {
  /** Calls found so far. */
  calls = 0;
  readonly #format: ToolFormat;
  readonly #names: ReadonlySet<string>;
  readonly #schemas: ReadonlyMap<string, JsonValue>;
  #state: 'start' | 'text' | 'between' | 'call' = 'start';
  #held = '';
  #reader: CallText = new CallReader();
  /** Text since the last mark, given back where no call follows. */
  #gap = '';

  /**
   * @param names of the tools that were offered; a bare call must name one of them.
   * @param schemas of their arguments, by their names
   */
  constructor(
    format: ToolFormat,
    names: Iterable<string>,
    schemas: ReadonlyMap<string, JsonValue> = new Map(),
  ) {
    this.#format = format;
    this.#names = new Set(names);
    this.#schemas = schemas;
  }

  push(piece: string): ParsedText {
    const out: ParsedText = { content: '', tool_calls: [] };
    this.#held += piece;
    while (this.#held !== '' && this.#advance(out));
    return out;
  }

  /** What was withheld, once nothing can follow. */
  end(): ParsedText {
    const out: ParsedText = { content: '', tool_calls: [] };
    if (this.#state === 'call' && !this.#reader.started) out.content = this.#gap + this.#reader.raw;
    else if (this.#state === 'between' && this.#gapIsText) out.content = this.#gap + this.#held;
    else if (this.#state === 'start' || this.#state === 'text') out.content = this.#held;
    this.#held = '';
    return out;
  }

  /** @returns whether more can be done with what is held. */
  #advance(out: ParsedText): boolean {
    switch (this.#state) {
      case 'start':
        return this.#start();
      case 'text':
        return this.#text(out);
      case 'between':
        return this.#between(out);
      case 'call':
        return this.#call(out);
    }
  }

  #start(): boolean {
    if (!this.#format.bare) {
      this.#state = 'text';
      return true;
    }
    const text = this.#held.trimStart();
    if (text === '') return false;
    if (text.startsWith('{')) {
      this.#gap = '';
      this.#state = 'between';
    } else this.#state = 'text';
    return true;
  }

  #text(out: ParsedText): boolean {
    const { open } = this.#format;
    const at = this.#held.indexOf(open);
    if (at >= 0) {
      const before = this.#held.slice(0, at);
      const kept = before.trimEnd();
      out.content += kept;
      this.#gap = before.slice(kept.length) + open;
      this.#held = this.#held.slice(at + open.length);
      this.#state = 'between';
      return true;
    }
    // White space before a mark belongs to the mark, so it waits as well.
    const overlap = longestOverlap(this.#held, [open]);
    const ready = this.#held.slice(0, this.#held.length - overlap).trimEnd();
    out.content += ready;
    this.#held = this.#held.slice(ready.length);
    return false;
  }

  /** After a mark or a call: separators, another call, the closing mark, or text again. */
  #between(out: ParsedText): boolean {
    const { close, open, name, begin } = this.#format;
    const separators = name === 'mistral' ? /^[\s[\],]+/ : name === 'llama3' ? /^[\s;]+/ : /^\s+/;
    const skipped = separators.exec(this.#held)?.[0] ?? '';
    this.#gap += skipped;
    this.#held = this.#held.slice(skipped.length);
    if (this.#held === '') return false;
    if (this.#callBegins) {
      this.#reader = this.#newReader();
      this.#state = 'call';
      return true;
    }
    if (begin?.startsWith(this.#held)) return false;
    for (const mark of [close, open]) {
      if (mark === undefined) continue;
      if (this.#held.startsWith(mark)) {
        this.#held = this.#held.slice(mark.length);
        this.#gap = mark === open ? this.#gap + mark : '';
        this.#state = mark === open ? 'between' : 'text';
        return true;
      }
      if (mark.startsWith(this.#held)) return false;
    }
    // No call after the opening mark: both are text of the answer.
    if (this.#gapIsText) out.content += this.#gap;
    this.#gap = '';
    this.#state = 'text';
    return true;
  }

  /** Whether what is held is the beginning of a call; a bare name is one right after a mark alone. */
  get #callBegins(): boolean {
    const { name, open, begin } = this.#format;
    const isMarked = this.#gap.includes(open);
    if (begin !== undefined) return isMarked && this.#held.startsWith(begin);
    return name === 'mistral-marked' ? isMarked && /^[\w.-]/.test(this.#held) : this.#held.startsWith('{');
  }

  #newReader(): CallText {
    if (this.#format.name === 'mistral-marked') return new MarkedCallReader();
    return this.#format.name === 'qwen3-coder' ? new FunctionCallReader(this.#schemas) : new CallReader();
  }

  /** Separators after a call are dropped; a mark that no call follows is not. */
  get #gapIsText(): boolean {
    return this.calls === 0 || this.#gap.includes(this.#format.open);
  }

  #call(out: ParsedText): boolean {
    const { length, progress } = this.#reader.read(this.#held);
    this.#held = this.#held.slice(length);
    const unknown = progress.name !== undefined && this.#format.bare && !this.#names.has(progress.name);
    if (unknown || (this.#reader.state === 'invalid' && !this.#reader.started)) {
      out.content += this.#gap + this.#reader.raw;
      this.#gap = '';
      this.#state = 'text';
      return true;
    }
    if (progress.name !== undefined || progress.arguments !== undefined) {
      if (progress.name !== undefined) this.calls++;
      out.tool_calls.push({
        index: this.calls - 1,
        name: progress.name,
        arguments: progress.arguments ?? '',
      });
    }
    if (this.#reader.state !== 'reading') {
      this.#gap = '';
      this.#state = 'between';
    }
    return true;
  }
}
