import type { JsonValue } from '../grammar/schema-keywords.ts';
import { CallParser, type ToolCallDelta } from '../tools/call-parser.ts';
import type { ToolFormat } from '../tools/tool-format.ts';
import { ReasoningSplitter } from './reasoning.ts';

/** A stretch of an answer, sorted by what it is. */
export interface AnswerDelta {
  content: string;
  reasoning: string;
  tool_calls: ToolCallDelta[];
}

export interface AnswerForm {
  /** Absent: the model does not reason in marks; else whether the prompt already opened its reasoning. */
  reasoning?: { opened: boolean };
  /** Absent: no tools were offered. */
  tools?: {
    format: ToolFormat;
    names: readonly string[];
    /** JSON schemas of their arguments, by their names; absent: nothing is known of them. */
    schemas?: ReadonlyMap<string, JsonValue>;
  };
}

/** Sorts the text of a chat answer into content, reasoning and tool calls, as it arrives. */
export class OutputParser {
  readonly #reasoning: ReasoningSplitter | undefined;
  readonly #calls: CallParser | undefined;

  constructor(form: AnswerForm) {
    this.#reasoning = form.reasoning && new ReasoningSplitter(form.reasoning.opened);
    this.#calls = form.tools && new CallParser(form.tools.format, form.tools.names, form.tools.schemas);
  }

  get tool_calls(): number {
    return this.#calls?.calls ?? 0;
  }

  push(text: string): AnswerDelta {
    const split = this.#reasoning?.push(text) ?? { reasoning: '', content: text };
    if (!this.#calls) return { ...split, tool_calls: [] };
    return { reasoning: split.reasoning, ...this.#calls.push(split.content) };
  }

  end(): AnswerDelta {
    const split = this.#reasoning?.end() ?? { reasoning: '', content: '' };
    if (!this.#calls) return { ...split, tool_calls: [] };
    const last = this.#calls.push(split.content);
    const rest = this.#calls.end();
    return {
      reasoning: split.reasoning,
      content: last.content + rest.content,
      tool_calls: [...last.tool_calls, ...rest.tool_calls],
    };
  }
}
