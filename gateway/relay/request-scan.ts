import { JsonScan } from './json-scan.ts';

/** Where something lies in a body. */
export interface Span {
  start: number;
  end: number;
}

/** Members of a request that are read, or that are changed where a stream goes on elsewhere. */
export const bindingMembers = [
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'structured_outputs',
  'json_schema',
  'regex',
  'ebnf',
  'grammar',
] as const;
const members = [
  'model',
  'stream',
  'stream_options',
  'max_tokens',
  'max_completion_tokens',
  'max_output_tokens',
  'min_tokens',
  'n',
  'best_of',
  'messages',
  'prompt',
  'input',
  'instructions',
  'echo',
  'stop',
  'include_stop_str_in_output',
  'temperature',
  'top_p',
  'top_k',
  'seed',
  'presence_penalty',
  'frequency_penalty',
  'logit_bias',
  'logprobs',
  'top_logprobs',
  'truncate_prompt_tokens',
  'thinking_token_budget',
  'prompt_embeds',
  'return_token_ids',
  'response_format',
  'tools',
  'tool_choice',
  'continue_final_message',
  'add_generation_prompt',
  'hpcserve_continue',
  ...bindingMembers,
] as const;
export type Member = (typeof members)[number];
/** Under `stream_options`. */
type StreamOption = 'include_usage' | 'continuous_usage_stats';

const memberNames: ReadonlyMap<string, Member> = new Map(members.map((name) => [name, name]));
/** Longest spelling of a name that is looked at: every character as an escape. */
const name_bytes_max = 6 * Math.max(...members.map((name) => name.length));
/** Pieces of text looked at in one prompt: what lies behind so many is of no weight for who knows its beginning. */
const parts_max = 256;
const QUOTE = 34;

/** A string, quotes included, and whether some of it is spelled with backslashes. */
export interface Text extends Span {
  escaped: boolean;
}

/** Texts of a prompt, for finding replicas that know its beginning. */
export interface PromptParts {
  /** In their order. */
  parts: Text[];
  /** How many of them there are up to the end of what a person wrote first. */
  opening: number;
}

/**
 * Reads a request's body as far as the gateway must know it. Of several equal names the last one counts, as in
 * JSON.parse. In `content` and below names are taken as they are spelled: what is found there only helps to choose.
 */
export class RequestScan extends JsonScan {
  /** Values of members of the body. */
  readonly members = new Map<Member, Span>();
  /** Values of members of its `stream_options`. */
  readonly streamOptions = new Map<StreamOption, Span>();
  /** Whether the body is an object, and where its closing brace is. */
  isObject = false;
  close = -1;
  /** Entries of `prompt` where it is a list, and whether the first is a string. */
  prompt_entries = 0;
  prompt_of_strings = false;
  /** The `content` of the last of `messages`, where that is a string. */
  last_content: Span | undefined;
  readonly #texts: Partial<Record<'messages' | 'prompt' | 'input' | 'instructions', PromptParts>> = {};
  #member: Member | undefined;
  #member_start = 0;
  #option: StreamOption | undefined;
  #option_start = 0;
  /** In an entry of a list of messages: which name the next value has. */
  #field: 'role' | 'content' | 'text' | undefined;
  #by_user = false;
  #content_start = -1;

  /** Texts as the request's API takes them: `messages`, else `prompt`, else `instructions` and `input`. */
  get promptParts(): PromptParts {
    const { messages, prompt, instructions, input } = this.#texts;
    if (this.#isList('messages')) return opened(messages);
    if (this.members.has('prompt')) return { parts: prompt?.parts ?? [], opening: 1 };
    const parts = [...(instructions?.parts ?? []), ...(input?.parts ?? [])];
    const before = instructions?.parts.length ?? 0;
    return { parts, opening: this.#isList('input') ? before + opened(input).opening : parts.length };
  }

  protected onName(depth: number, start: number, end: number, escaped: boolean): void {
    if (depth === 1) this.#begin(this.#memberAt(start, end, escaped));
    else if (depth === 2) {
      if (this.#member === 'stream_options') this.#option = this.#optionAt(start, end, escaped);
    } else if (depth === 3)
      this.#field = this.#is(start, end, 'content')
        ? 'content'
        : this.#is(start, end, 'role')
          ? 'role'
          : undefined;
    else if (depth === 5) this.#field = this.#is(start, end, 'text') ? 'text' : undefined;
  }

  protected onOpen(depth: number, start: number): void {
    if (depth === 0) this.isObject = this.bytes[start] === 123;
    else if (depth === 1) this.#member_start = start;
    else if (depth === 2) {
      this.#option_start = start;
      this.#countEntry(start);
      this.#by_user = false;
      this.#noteContent(undefined);
    } else if (depth === 3) {
      this.#content_start = this.#field === 'content' ? start : -1;
      if (this.#field === 'content') this.#noteContent(undefined);
    }
  }

  protected onScalar(depth: number, start: number, end: number, escaped: boolean): void {
    if (depth > 5 || depth === 4) return;
    const isText = this.bytes[start] === QUOTE && end - start > 2;
    if (depth === 1) {
      if (
        isText &&
        (this.#member === 'prompt' || this.#member === 'input' || this.#member === 'instructions')
      )
        this.#add(this.#member, { start, end, escaped });
      this.#member_start = start;
      this.#endMember(end);
    } else if (depth === 2) {
      this.#option_start = start;
      this.#countEntry(start);
      if (isText && this.#member === 'prompt' && this.prompt_entries === 1)
        this.#add('prompt', { start, end, escaped });
      this.#endOption(end);
      this.#noteContent(undefined);
    } else if (depth === 3) this.#fieldOfMessage(start, end, isText, escaped);
    else if (isText && this.#field === 'text' && this.#content_start !== -1)
      this.#addMessageText({ start, end, escaped });
  }

  protected onClose(depth: number, end: number): void {
    if (depth === 0) this.close = end - 1;
    else if (depth === 1) this.#endMember(end);
    else if (depth === 2) {
      this.#endOption(end);
      const member = this.#member;
      if (this.#by_user && (member === 'messages' || member === 'input')) {
        const texts = this.#texts[member]!;
        if (texts.opening === 0) texts.opening = texts.parts.length;
      }
    } else if (depth === 3) this.#content_start = -1;
  }

  #fieldOfMessage(start: number, end: number, isText: boolean, escaped: boolean): void {
    if (this.#field === 'role') this.#by_user = this.#is(start, end, '"user"');
    else if (this.#field === 'content') {
      this.#noteContent(this.bytes[start] === QUOTE ? { start, end } : undefined);
      if (isText) this.#addMessageText({ start, end, escaped });
    }
  }

  #begin(member: Member | undefined): void {
    this.#member = member;
    if (member === 'stream_options') this.streamOptions.clear();
    else if (member === 'prompt') {
      this.prompt_entries = 0;
      this.prompt_of_strings = false;
    } else if (member === 'messages') this.last_content = undefined;
    if (member === 'messages' || member === 'prompt' || member === 'input' || member === 'instructions')
      this.#texts[member] = { parts: [], opening: 0 };
  }

  #endMember(end: number): void {
    if (this.#member !== undefined) this.members.set(this.#member, { start: this.#member_start, end });
    this.#member = undefined;
  }

  #endOption(end: number): void {
    if (this.#option !== undefined) this.streamOptions.set(this.#option, { start: this.#option_start, end });
    this.#option = undefined;
  }

  #countEntry(start: number): void {
    if (this.#member !== 'prompt') return;
    if (this.prompt_entries++ === 0) this.prompt_of_strings = this.bytes[start] === QUOTE;
  }

  #isList(member: 'messages' | 'input'): boolean {
    const span = this.members.get(member);
    return span !== undefined && this.bytes[span.start] === 91;
  }

  #noteContent(span: Span | undefined): void {
    if (this.#member === 'messages') this.last_content = span;
  }

  #addMessageText(span: Text): void {
    if (this.#member === 'messages' || this.#member === 'input') this.#add(this.#member, span);
  }

  #add(member: 'messages' | 'prompt' | 'input' | 'instructions', span: Text): void {
    const { parts } = this.#texts[member]!;
    if (parts.length < parts_max) parts.push(span);
  }

  #memberAt(start: number, end: number, escaped: boolean): Member | undefined {
    return memberNames.get(this.#name(start, end, escaped));
  }

  #optionAt(start: number, end: number, escaped: boolean): StreamOption | undefined {
    const name = this.#name(start, end, escaped);
    return name === 'include_usage' || name === 'continuous_usage_stats' ? name : undefined;
  }

  #name(start: number, end: number, escaped: boolean): string {
    if (end - start > name_bytes_max) return '';
    const spelled = this.bytes.toString('latin1', start, end);
    return escaped ? (JSON.parse(`"${spelled}"`) as string) : spelled;
  }

  #is(start: number, end: number, word: string): boolean {
    if (end - start !== word.length) return false;
    // No string is made: this is asked for every name in every message.
    for (let index = 0; index < word.length; index++)
      if (this.bytes[start + index] !== word.charCodeAt(index)) return false;
    return true;
  }
}

function opened(texts: PromptParts | undefined): PromptParts {
  if (!texts) return { parts: [], opening: 0 };
  return texts.opening === 0 ? { ...texts, opening: texts.parts.length } : texts;
}
