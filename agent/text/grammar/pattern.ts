/**
 * A subset of ECMA-262 regular expressions as GBNF, for the `pattern` of a JSON schema: literals, classes,
 * escapes, groups, alternation, quantifiers, and the anchors ^ and $ at the ends of the pattern or of its
 * outermost alternatives. Lookaround, back references, word boundaries and flags are refused by name.
 */
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  type CharacterSet,
  characterInString,
  complement,
  digits,
  lineBreaks,
  normalise,
  spaces,
  wordCharacters,
} from './character-set.ts';
import { characterClass, either, type GrammarBuilder } from './gbnf.ts';

/** Largest count in a quantifier. Lower: smaller grammars; higher: longer fixed-length fields. */
const largestCount = 1000;
/** Of reading an atom of a pattern, and of a class, whose ranges are sorted, joined and turned around. */
const steps_per_atom = 8;
const steps_per_class = 120;
/** Of an atom, which each group around it copies. */
const chars_per_step = 16;

/** What escapes stand for. */
const namedSets: ReadonlyMap<string, CharacterSet> = new Map([
  ['d', digits],
  ['D', complement(digits)],
  ['w', wordCharacters],
  ['W', complement(wordCharacters)],
  ['s', spaces],
  ['S', complement(spaces)],
  ['n', [[0x0a, 0x0a]]],
  ['r', [[0x0d, 0x0d]]],
  ['t', [[0x09, 0x09]]],
  ['f', [[0x0c, 0x0c]]],
  ['v', [[0x0b, 0x0b]]],
]);

/** How the text is written that a pattern speaks of. */
export interface WrittenCharacters {
  /** GBNF of any one character. */
  any: string;
  /** Of one of a set; undefined where none can be written. */
  of(set: CharacterSet): string | undefined;
  /** Whether the pattern is of the whole text, also without `^` and `$`. */
  whole: boolean;
}

/** The content of a JSON string, without its quotes. */
export function charactersOfJson(any: string): WrittenCharacters {
  return { any, of: characterInString, whole: false };
}

/** A whole text as it is. */
export const plainCharacters: WrittenCharacters = {
  any: '[^\\x00]',
  of: (set) => (set.length === 0 ? undefined : characterClass(set)),
  whole: true,
};

/** @returns GBNF for the texts that match the pattern. */
export function patternToGrammar(
  builder: GrammarBuilder,
  pattern: string,
  characters: WrittenCharacters,
): string {
  return new PatternReader(builder, pattern, characters).read();
}

class PatternReader {
  readonly #builder: GrammarBuilder;
  readonly #pattern: string;
  readonly #characters: WrittenCharacters;
  #at = 0;

  constructor(builder: GrammarBuilder, pattern: string, characters: WrittenCharacters) {
    this.#builder = builder;
    this.#pattern = pattern;
    this.#characters = characters;
  }

  read(): string {
    const alternatives: string[] = [];
    do {
      const start = this.#take('^');
      const body = this.#sequence();
      const end = this.#take('$');
      if (this.#at < this.#pattern.length && this.#peek() !== '|') this.#refuse('`$` inside of the pattern');
      const { any, whole } = this.#characters;
      const before = start || whole ? '' : `${any}* `;
      const after = end || whole ? '' : ` ${any}*`;
      alternatives.push(`${before}${body}${after}`);
    } while (this.#take('|'));
    return either(alternatives);
  }

  /** Terms up to `|`, `)`, `$` or the end. */
  #sequence(): string {
    const terms: string[] = [];
    while (this.#at < this.#pattern.length && !'|)$'.includes(this.#peek())) terms.push(this.#quantified());
    if (this.#peek() === ')' && this.#depth === 0) this.#refuse('a `)` without its `(`');
    return terms.length === 0 ? '""' : terms.join(' ');
  }

  #depth = 0;

  #group(): string {
    if (this.#pattern.startsWith('?:', this.#at)) this.#at += 2;
    else if (/^\?<[a-zA-Z_]\w*>/.test(this.#pattern.slice(this.#at)))
      this.#at = this.#pattern.indexOf('>', this.#at) + 1;
    else if (this.#peek() === '?') this.#refuse('lookaround or flags `(?…)`');
    this.#depth++;
    if (this.#depth > 50) this.#refuse('groups nested more than 50 deep');
    const alternatives: string[] = [];
    do alternatives.push(this.#sequence());
    while (this.#take('|'));
    if (!this.#take(')'))
      this.#refuse(this.#peek() === '$' ? '`$` inside of a group' : 'a `(` without its `)`');
    this.#depth--;
    return alternatives.length === 1 ? `(${alternatives[0]})` : either(alternatives);
  }

  #quantified(): string {
    const atom = this.#atom();
    this.#builder.steps.spend(steps_per_atom + atom.length / chars_per_step);
    const [min, max] = this.#quantifier() ?? [1, 1];
    if (min === 1 && max === 1) return atom;
    // Greedy or lazy makes no difference to what matches.
    this.#take('?');
    return this.#builder.repeat(this.#builder.add('pattern', atom), min, max);
  }

  #quantifier(): [number, number] | undefined {
    if (this.#take('*')) return [0, Number.POSITIVE_INFINITY];
    if (this.#take('+')) return [1, Number.POSITIVE_INFINITY];
    if (this.#take('?')) return [0, 1];
    const counted = /^\{(\d+)(,(\d*))?\}/.exec(this.#pattern.slice(this.#at));
    if (!counted) return undefined;
    this.#at += counted[0].length;
    const min = Number(counted[1]);
    const max = counted[2] === undefined ? min : counted[3] ? Number(counted[3]) : Number.POSITIVE_INFINITY;
    if (min > max) this.#refuse(`the quantifier ${counted[0]}, which is out of order`);
    if (Math.max(min, Number.isFinite(max) ? max : 0) > largestCount)
      this.#refuse(`the quantifier ${counted[0]}: counts go up to ${largestCount}`);
    return [min, max];
  }

  #atom(): string {
    const character = this.#next();
    switch (character) {
      case '(':
        return this.#group();
      case '[':
        return this.#set(this.#classSet(), 'an empty class');
      case '.':
        return this.#set(complement(lineBreaks), '.');
      case '\\':
        return this.#set(this.#escape(false), 'this escape');
      case '^':
        return this.#refuse('`^` inside of the pattern');
      case '*':
      case '+':
      case '?':
        return this.#refuse(`\`${character}\` with nothing to repeat`);
      default: {
        const code = character.codePointAt(0)!;
        return this.#set([[code, code]], `the control character ${JSON.stringify(character)}`);
      }
    }
  }

  #set(set: CharacterSet, name: string): string {
    this.#builder.steps.spend(steps_per_atom * set.length);
    return this.#characters.of(set) ?? this.#refuse(name);
  }

  #classSet(): CharacterSet {
    this.#builder.steps.spend(steps_per_class);
    const negated = this.#take('^');
    const ranges: [number, number][] = [];
    for (;;) {
      if (this.#at >= this.#pattern.length) this.#refuse('a `[` without its `]`');
      if (this.#take(']')) break;
      const low = this.#classMember();
      if (
        this.#peek() === '-' &&
        this.#pattern[this.#at + 1] !== ']' &&
        this.#at + 1 < this.#pattern.length
      ) {
        this.#at++;
        const high = this.#classMember();
        const from = single(low);
        const to = single(high);
        if (from === undefined || to === undefined || from > to) this.#refuse('a class range out of order');
        ranges.push([from!, to!]);
      } else {
        for (const [from, to] of low) ranges.push([from, to]);
      }
    }
    const set = normalise(ranges);
    return negated ? complement(set) : set;
  }

  #classMember(): CharacterSet {
    this.#builder.steps.spend(steps_per_atom);
    const character = this.#next();
    if (character === '\\') return this.#escape(true);
    const code = character.codePointAt(0)!;
    return [[code, code]];
  }

  #escape(inClass: boolean): CharacterSet {
    const character = this.#next();
    if (inClass && character === 'b') return [[0x08, 0x08]];
    const known = namedSets.get(character);
    if (known) return known;
    const hex = /^(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\})/.exec(
      this.#pattern.slice(this.#at - 1),
    );
    if (hex) {
      this.#at += hex[0].length - 1;
      const code = Number.parseInt(hex[0].replace(/[^0-9a-fA-F]/g, ''), 16);
      return [[code, code]];
    }
    if (/[a-zA-Z0-9]/.test(character)) this.#refuse(`the escape \`\\${character}\``);
    const code = character.codePointAt(0)!;
    return [[code, code]];
  }

  #peek(): string {
    return this.#pattern[this.#at] ?? '';
  }

  #next(): string {
    const code = this.#pattern.codePointAt(this.#at);
    if (code === undefined) this.#refuse('a `\\` at its end');
    const character = String.fromCodePoint(code!);
    this.#at += character.length;
    return character;
  }

  #take(text: string): boolean {
    if (!this.#pattern.startsWith(text, this.#at)) return false;
    this.#at += text.length;
    return true;
  }

  #refuse(what: string): never {
    throw new HpcserveError('E_REQUEST_SCHEMA', {
      what: `the pattern ${JSON.stringify(this.#pattern)} has ${what}, which cannot constrain an answer`,
      try: 'use literals, classes, groups, alternation, quantifiers, and ^ and $ at the ends',
    });
  }
}

function single(set: CharacterSet): number | undefined {
  return set.length === 1 && set[0]![0] === set[0]![1] ? set[0]![0] : undefined;
}
