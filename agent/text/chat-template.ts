import { Template } from '@huggingface/jinja';
import { HpcserveError } from '../../spec/errors/error.ts';
import { strftime } from './strftime.ts';

/** A message as templates get it: what OpenAI's API has, with text content as one string. */
export interface ChatMessage {
  role: string;
  content: string | null;
  name?: string;
  tool_call_id?: string;
  reasoning_content?: string;
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: unknown } }[];
  [extra: string]: unknown;
}

export interface RenderOptions {
  messages: readonly ChatMessage[];
  tools?: readonly unknown[];
  add_generation_prompt: boolean;
  /** The prompt ends inside of the last message, for the model to go on with it. */
  continue_final_message: boolean;
  /**
   * What `strftime_now` of a template says, Unix ms, by default the present; in UTC, so that every node writes the
   * same.
   */
  now_ms?: number;
  /** Variables that a template of its own kind knows, such as `enable_thinking`. */
  variables: Readonly<Record<string, unknown>>;
}

/** Used where a model file has no template, as llama.cpp does: ChatML, the form that most models have seen. */
const chatMl = `{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}`;

/** The template library's own `strftime_now` knows no time but the present; a template that asks gets ours instead. */
const clockName = 'hpcserve_strftime';
const clock = `{% set strftime_now = ${clockName} %}`;

/** A model's chat template (Jinja, as Hugging Face's `apply_chat_template` renders it). */
export class ChatTemplate {
  readonly source: string;
  /** Whether the model had none, and ChatML stands in. */
  readonly fallback: boolean;
  readonly #template: Template;
  readonly #tokens: { bos_token: string; eos_token: string };

  /** @throws HpcserveError E_REQUEST_TEMPLATE where the template is no Jinja that can be read */
  constructor(source: string | undefined, tokens: { bos_token: string; eos_token: string }) {
    this.fallback = source === undefined;
    this.source = source ?? chatMl;
    this.#tokens = tokens;
    try {
      this.#template = new Template(withClock(this.source));
    } catch (error) {
      throw new HpcserveError('E_REQUEST_TEMPLATE', {
        what: "the model's chat template cannot be read",
        because: messageOf(error),
        try: 'name another template in model.yaml (chat_template_file), or ask /v1/completions',
        cause: error,
      });
    }
  }

  /** @throws HpcserveError E_REQUEST_TEMPLATE with the template's own words where it raises an exception */
  render(options: RenderOptions): string {
    const { messages, tools, add_generation_prompt, continue_final_message, variables } = options;
    const now_ms = options.now_ms ?? Date.now();
    let text: string;
    try {
      text = this.#template.render({
        ...this.#tokens,
        ...variables,
        [clockName]: (format: string) => strftime(now_ms, format),
        messages: messages as unknown[],
        tools: tools ?? null,
        add_generation_prompt: add_generation_prompt && !continue_final_message,
      });
    } catch (error) {
      throw new HpcserveError('E_REQUEST_TEMPLATE', {
        what: "the model's chat template refuses these messages",
        because: messageOf(error),
        details: { param: 'messages' },
        cause: error,
      });
    }
    return continue_final_message ? this.#cutAfterLast(text, messages) : text;
  }

  /** As Hugging Face does it: everything after the text of the last message is dropped. */
  #cutAfterLast(text: string, messages: readonly ChatMessage[]): string {
    const content = messages.at(-1)?.content ?? '';
    const trimmed = content.trim();
    const at = trimmed === '' ? -1 : text.lastIndexOf(trimmed);
    if (at < 0)
      throw new HpcserveError('E_REQUEST_TEMPLATE', {
        what: 'the last message cannot be continued',
        because: 'its text is empty, or the chat template does not write it as it is',
        details: { param: 'continue_final_message' },
      });
    const end = at + trimmed.length;
    // White space at its end is kept as far as the template kept it.
    const spaces = content.slice(content.trimEnd().length);
    return text.slice(0, end) + (text.startsWith(spaces, end) ? spaces : '');
  }
}

function withClock(source: string): string {
  if (!source.includes('strftime_now')) return source;
  // A block swallows the line break that follows it.
  return source.startsWith('\n') ? `${clock}\n${source}` : clock + source;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
