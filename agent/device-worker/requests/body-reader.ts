import { HpcserveError } from '../../../spec/errors/error.ts';
import { nearest } from '../../../spec/nearest.ts';

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** Longest grammar in GBNF. Lower: less work for hostile requests; higher: larger grammars. */
export const grammar_chars_max = 256 * 1024;

/** Of names and values that a client made up, what messages show. */
const shown_chars_max = 200;

export interface NumberRange {
  min?: number;
  max?: number;
  integer?: boolean;
}

/** Parameters of OpenAI's API that change nothing about an answer here. */
const harmless = [
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'prompt_cache_retention',
  'prediction',
];

/** What other servers call parameters that are here under another name, which no letters lead to. */
const foreignNames: ReadonlyMap<string, string> = new Map([
  ['repeat_penalty', 'repetition_penalty'],
  ['num_predict', 'max_completion_tokens'],
  ['n_predict', 'max_completion_tokens'],
  ['max_new_tokens', 'max_completion_tokens'],
  ['max_output_tokens', 'max_completion_tokens'],
  ['max_tokens_to_sample', 'max_completion_tokens'],
  ['stop_sequences', 'stop'],
  ['num_return_sequences', 'n'],
]);

/**
 * Reads a JSON object parameter by parameter: each is checked for its type and range, `null` counts as
 * absent, and what nobody asked for is refused by name at the end.
 */
export class BodyReader {
  readonly body: JsonObject;
  /** What of the request is taken and without effect: its answer says so in a header. */
  readonly warnings: string[] = [];
  readonly #prefix: string;
  readonly #known = new Set<string>();

  /** @param prefix name of the parameter that holds this object; '' for the body itself */
  constructor(body: Json, prefix = '') {
    this.#prefix = prefix;
    if (!isObject(body)) invalid(prefix === '' ? null : prefix, `must be a JSON object, not ${kindOf(body)}`);
    this.body = body as JsonObject;
  }

  raw(name: string): Json | undefined {
    this.#known.add(name);
    const value = Object.hasOwn(this.body, name) ? this.body[name] : undefined;
    return value === null ? undefined : value;
  }

  number(name: string, range: NumberRange = {}): number | undefined {
    const value = this.raw(name);
    if (value === undefined) return undefined;
    const { min, max, integer } = range;
    const wanted = integer ? 'an integer' : 'a number';
    if (typeof value !== 'number' || (integer && !Number.isSafeInteger(value)))
      return this.refuse(name, `must be ${wanted}, not ${kindOf(value)}`);
    if ((min !== undefined && value < min) || (max !== undefined && value > max)) {
      const limits =
        min === undefined
          ? `at most ${max}`
          : max === undefined
            ? `at least ${min}`
            : `from ${min} to ${max}`;
      return this.refuse(name, `must be ${wanted} ${limits}, not ${value}`);
    }
    return value;
  }

  boolean(name: string): boolean | undefined {
    const value = this.raw(name);
    if (value === undefined || typeof value === 'boolean') return value;
    return this.refuse(name, `must be true or false, not ${kindOf(value)}`);
  }

  string(name: string): string | undefined {
    const value = this.raw(name);
    if (value === undefined || typeof value === 'string') return value;
    return this.refuse(name, `must be a string, not ${kindOf(value)}`);
  }

  oneOf<const T extends string>(name: string, allowed: readonly T[]): T | undefined {
    const value = this.string(name);
    if (value === undefined || allowed.includes(value as T)) return value as T | undefined;
    return this.refuse(name, `must be one of ${allowed.join(', ')}, not ${shortened(JSON.stringify(value))}`);
  }

  list(name: string): Json[] | undefined {
    const value = this.raw(name);
    if (value === undefined || Array.isArray(value)) return value;
    return this.refuse(name, `must be a list, not ${kindOf(value)}`);
  }

  object(name: string): BodyReader | undefined {
    const value = this.raw(name);
    return value === undefined ? undefined : new BodyReader(value, this.path(name));
  }

  /** Integers, such as token ids. */
  integers(name: string, range: NumberRange = {}): number[] | undefined {
    const list = this.list(name);
    return list?.map((value, index) => {
      const { min = Number.MIN_SAFE_INTEGER, max = Number.MAX_SAFE_INTEGER } = range;
      if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max)
        return this.refuse(`${name}[${index}]`, `must be an integer from ${min} to ${max}`);
      return value;
    });
  }

  /** Parameters that may be there and mean nothing. */
  ignore(...names: string[]): void {
    for (const name of names) this.#known.add(name);
  }

  /** Names that nothing has read. */
  unread(): string[] {
    return Object.keys(this.body).filter((name) => !this.#known.has(name));
  }

  /** Refuses a parameter that is understood and cannot be fulfilled. */
  unsupported(name: string, reason: string): void {
    if (this.raw(name) !== undefined)
      throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
        what: `\`${this.path(name)}\` is not supported: ${reason}`,
        details: { param: this.path(name) },
      });
  }

  /** @throws HpcserveError E_REQUEST_PARAMETER for the first parameter that nothing has read */
  finish(): void {
    if (this.#prefix === '') this.ignore(...harmless);
    for (const name of this.unread()) {
      const near = foreignNames.get(name) ?? nearest(name, this.#known);
      throw new HpcserveError('E_REQUEST_PARAMETER', {
        what: `Unknown parameter: \`${this.path(name)}\`${near === undefined ? '' : `; did you mean \`${near}\`?`}`,
        details: { param: this.path(name) },
      });
    }
  }

  refuse(name: string, what: string): never {
    return invalid(this.path(name), what);
  }

  path(name: string): string {
    const shown = shortened(name);
    return this.#prefix === '' ? shown : `${this.#prefix}.${shown}`;
  }
}

/** @throws HpcserveError E_REQUEST_INVALID that names the parameter */
export function invalid(param: string | null, what: string): never {
  throw new HpcserveError('E_REQUEST_INVALID', {
    what: param === null ? `The request body ${what}` : `\`${param}\` ${what}`,
    details: { param },
  });
}

/** As messages show it: whole, unless nobody would read it. */
function shortened(text: string): string {
  return text.length > shown_chars_max ? `${text.slice(0, shown_chars_max)}…` : text;
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function kindOf(value: Json): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'an object';
  return typeof value === 'string' ? 'a string' : String(value);
}
