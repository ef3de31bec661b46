import type { JsonType, JsonValue } from '../grammar/schema-keywords.ts';
import { longestOverlap } from '../output/stop-strings.ts';
import type { CallProgress, CallText } from './call-reader.ts';
import { isText, jsonOf, parameterSchema, typesOf } from './parameter-types.ts';

export const functionBegin = '<function=';
const functionEnd = '</function>';
const parameterBegin = '<parameter=';
export const parameterEnd = '</parameter>';

/** The line break before the end of a value belongs to the end. */
const valueEnds = [`\n${parameterEnd}`, parameterEnd] as const;

/**
 * Reads one call in the form that Qwen3-Coder has, letter by letter:
 *
 *     <function=name>
 *     <parameter=key>
 *     value, on as many lines as it has
 *     </parameter>
 *     </function>
 *
 * Values have no quotes, so the tool's schema says what they are. A text is passed on as it grows; anything else once
 * it is complete.
 */
export class FunctionCallReader implements CallText {
  state: CallText['state'] = 'reading';
  raw = '';
  /** JSON schemas of arguments, by the names of their tools. */
  readonly #schemas: ReadonlyMap<string, JsonValue>;
  #expect: 'head' | 'tag' | 'line' | 'value' = 'head';
  /** Read, and not told of yet. */
  #held = '';
  #name: string | undefined;
  #nameSent = false;
  #parameters = 0;
  /** Of the value that is read. */
  #types: ReadonlySet<JsonType> | undefined;

  constructor(schemas: ReadonlyMap<string, JsonValue>) {
    this.#schemas = schemas;
  }

  get started(): boolean {
    return this.#nameSent;
  }

  read(text: string): { length: number; progress: CallProgress } {
    let length = 0;
    let argumentsText = '';
    for (const character of text) {
      if (this.state !== 'reading' || (this.#name !== undefined && !this.#nameSent)) break;
      length += character.length;
      this.raw += character;
      argumentsText += this.#step(character);
    }
    const progress: CallProgress = {};
    if (this.#name !== undefined && !this.#nameSent) {
      progress.name = this.#name;
      this.#nameSent = true;
    }
    if (argumentsText !== '') progress.arguments = argumentsText;
    return { length, progress };
  }

  /** @returns what the character adds to the arguments */
  #step(character: string): string {
    switch (this.#expect) {
      case 'head':
        this.#readHead(character);
        return '';
      case 'tag':
        return this.#readTag(character);
      case 'line':
        this.#expect = 'value';
        return character === '\n' ? '' : this.#readValue(character);
      case 'value':
        return this.#readValue(character);
    }
  }

  #readHead(character: string): void {
    this.#held += character;
    const [, name, end] = /^<function=([\w.-]{0,128})(>?)$/.exec(this.#held) ?? [];
    if (name && end) {
      this.#name = name;
      this.#held = '';
      this.#expect = 'tag';
    } else if ((name === undefined || end) && !functionBegin.startsWith(this.#held)) this.state = 'invalid';
  }

  /** Between values: a parameter begins, or the call ends. */
  #readTag(character: string): string {
    if (this.#held === '' && /\s/.test(character)) return '';
    this.#held += character;
    if (this.#held === functionEnd) {
      this.state = 'done';
      return this.#parameters === 0 ? '{}' : '}';
    }
    const [, key, end] = /^<parameter=([^<>\n]{0,256})(>?)$/.exec(this.#held) ?? [];
    if (key && end) return this.#beginValue(key);
    const isTag = [functionEnd, parameterBegin].some((tag) => tag.startsWith(this.#held));
    if (!isTag && (key === undefined || end)) this.state = 'invalid';
    return '';
  }

  #beginValue(key: string): string {
    const schema = this.#schemas.get(this.#name!);
    this.#types = typesOf(parameterSchema(schema, key), schema);
    this.#held = '';
    this.#expect = 'line';
    const before = this.#parameters++ === 0 ? '{' : ', ';
    return `${before}${JSON.stringify(key)}: ${isText(this.#types) ? '"' : ''}`;
  }

  #readValue(character: string): string {
    this.#held += character;
    if (!this.#held.endsWith(parameterEnd)) return isText(this.#types) ? this.#readText() : '';
    const value = this.#held.slice(0, -parameterEnd.length).replace(/\n$/, '');
    this.#held = '';
    this.#expect = 'tag';
    return isText(this.#types) ? `${escaped(value)}"` : jsonOf(value, this.#types);
  }

  /** What cannot be the end of the value. */
  #readText(): string {
    const at = this.#held.length - longestOverlap(this.#held, valueEnds);
    const ready = this.#held.slice(0, at);
    this.#held = this.#held.slice(at);
    return escaped(ready);
  }
}

/** As it stands between the quotes of a JSON string. */
function escaped(text: string): string {
  return JSON.stringify(text).slice(1, -1);
}
