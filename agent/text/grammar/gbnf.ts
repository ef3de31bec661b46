/**
 * Writing GBNF, the grammar notation of llama.cpp (grammars/README.md there): rules over characters, no
 * left recursion, repetition by `{m,n}`.
 */
import { HpcserveError } from '../../../spec/errors/error.ts';
import { StepBudget } from './step-budget.ts';

/** Rules a grammar may have. Lower: refuses large schemas earlier; higher: more memory and time per request. */
const largestGrammar = 20_000;

/** libllama expands `{m,n}` into rules; above this many, repetition goes by blocks instead. */
const blockLength = 128;

/** Collects rules and keeps their names unique. */
export class GrammarBuilder {
  /** Of all that is compiled into this grammar. */
  readonly steps = new StepBudget();
  readonly #rules = new Map<string, string>();
  readonly #byBody = new Map<string, string>();

  /** @returns the name of a rule with this body; an equal body shares one rule. */
  add(hint: string, body: string): string {
    const known = this.#byBody.get(body);
    if (known !== undefined) return known;
    this.steps.spendText(body);
    const name = this.reserve(hint);
    this.#byBody.set(body, name);
    this.#rules.set(name, body);
    return name;
  }

  /** A name whose body follows later: what recursion needs. */
  reserve(hint: string): string {
    if (this.#rules.size >= largestGrammar)
      throw new HpcserveError('E_REQUEST_SCHEMA', {
        what: `the constraint needs more than ${largestGrammar} grammar rules`,
        try: 'use a smaller schema, or fewer combinations of anyOf and allOf',
      });
    const base = hint.replace(/[^a-zA-Z0-9]+/g, '-').replace(/^-+|-+$/g, '') || 'rule';
    const stem = base.slice(0, 40);
    let name = `${stem}-${this.#rules.size}`;
    for (let n = 1; this.#rules.has(name); n++) name = `${stem}-${this.#rules.size}-${n}`;
    this.#rules.set(name, '');
    return name;
  }

  define(name: string, body: string): void {
    this.steps.spendText(body);
    this.#rules.set(name, body);
  }

  /** @param root body of the rule that the text must match. */
  toGbnf(root: string): string {
    const lines = [`root ::= ${root}`];
    for (const [name, body] of this.#rules) lines.push(`${name} ::= ${body}`);
    return `${lines.join('\n')}\n`;
  }

  /** `element` between `min` and `max` times, in O(√) rules where the counts are large. */
  repeat(element: string, min: number, max = Number.POSITIVE_INFINITY): string {
    if (max === 0) return '""';
    if (max === Number.POSITIVE_INFINITY) {
      if (min === 0) return `${element}*`;
      return min === 1 ? `${element}+` : `${this.repeat(element, min, min)} ${element}*`;
    }
    if (max <= blockLength) return min === max ? `${element}{${min}}` : `${element}{${min},${max}}`;
    const block = this.add('block', `${element}{${blockLength}}`);
    const exact = (count: number): string => {
      const blocks = Math.floor(count / blockLength);
      const rest = count % blockLength;
      const parts = [];
      if (blocks > 0) parts.push(this.repeat(block, blocks, blocks));
      if (rest > 0) parts.push(`${element}{${rest}}`);
      return parts.length > 0 ? parts.join(' ') : '""';
    };
    if (min === max) return exact(max);
    const spread = max - min;
    const head = min > 0 ? `${exact(min)} ` : '';
    const blocks = Math.floor(spread / blockLength);
    const rest = spread % blockLength;
    if (blocks === 0) return `${head}${element}{0,${spread}}`;
    const partial = `${this.repeat(block, 0, blocks - 1)} ${element}{0,${blockLength - 1}}`;
    const full = `${exact(blocks * blockLength)}${rest > 0 ? ` ${element}{0,${rest}}` : ''}`;
    return `${head}(${partial} | ${full})`;
  }
}

/** Adds to a grammar what a text may be. @returns the body of a rule */
export type AddForm = (builder: GrammarBuilder) => string;

/** GBNF of the texts that have one of these forms. */
export function grammarOf(forms: readonly AddForm[]): string {
  const builder = new GrammarBuilder();
  const [first = '""', ...more] = forms.map((add) => add(builder));
  return builder.toGbnf(
    more.length === 0 ? first : either([first, ...more].map((body) => builder.add('form', body))),
  );
}

/** A string that stands for itself. */
export function literal(text: string): string {
  let body = '';
  for (const character of text) body += escapeCharacter(character, '"');
  return `"${body}"`;
}

export type CharacterRange = readonly [low: number, high: number];

/** A character class of code point ranges. */
export function characterClass(ranges: readonly CharacterRange[]): string {
  const parts = ranges.map(([low, high]) =>
    low === high ? classCharacter(low) : `${classCharacter(low)}-${classCharacter(high)}`,
  );
  return `[${parts.join('')}]`;
}

function classCharacter(code: number): string {
  const character = String.fromCodePoint(code);
  if (/[a-zA-Z0-9]/.test(character)) return character;
  if (code <= 0xff) return `\\x${code.toString(16).toUpperCase().padStart(2, '0')}`;
  if (code <= 0xffff) return `\\u${code.toString(16).toUpperCase().padStart(4, '0')}`;
  return `\\U${code.toString(16).toUpperCase().padStart(8, '0')}`;
}

function escapeCharacter(character: string, quote: string): string {
  const code = character.codePointAt(0)!;
  if (character === quote || character === '\\') return `\\${character}`;
  if (character === '\n') return '\\n';
  if (character === '\r') return '\\r';
  if (character === '\t') return '\\t';
  return code < 0x20 || code === 0x7f ? `\\x${code.toString(16).padStart(2, '0')}` : character;
}

/** Alternatives in parentheses; a single one as it is. */
export function either(alternatives: readonly string[]): string {
  const unique = [...new Set(alternatives)];
  return unique.length === 1 ? unique[0]! : `(${unique.join(' | ')})`;
}
