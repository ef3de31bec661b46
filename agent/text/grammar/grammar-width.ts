/**
 * How many places of a grammar must be followed at once. libllama keeps a stack for each and compares them with each
 * other for every character: `(("a"?){30}){30}`, a line anybody can send, keeps it busy for hours, and with it every
 * model of its device. So what it is given is looked at first.
 */
import { HpcserveError } from '../../../spec/errors/error.ts';

/** Lower: refuses more grammars; higher: a step may take longer, with about the third power of it. */
const widest = 100;
/**
 * Longest grammar, and most rules in it; both are counted of grammars that schemas become, too.
 * Lower: less work for hostile requests; higher: larger grammars.
 */
const chars_max = 1024 * 1024;
const rules_max = 20_000;
/**
 * Parts of rules that are looked at, where rules refer to each other many times. Lower: refuses more of them; higher:
 * takes longer.
 */
const parts_max = 1_000_000;
/**
 * Characters and references that libllama makes of it, repetition written out; each takes some 20 bytes and 50 ns of
 * the thread that computes. Lower: less memory for hostile requests; higher: longer counted repetition of long texts.
 */
const elements_max = 1_000_000;
/** Brackets in each other. */
const depth_max = 200;
/** Nothing is counted beyond. */
const many = 1_000_000;

interface Width {
  /** Whether it may be empty. */
  empty: boolean;
  /** Places of characters that it may begin at. */
  first: number;
  /** Most places in it that may be next together with what follows it: it may end there, or go on. */
  tail: number;
  /** Most places in it that may be next at once. */
  run: number;
}

const nothing: Width = { empty: true, first: 0, tail: 0, run: 0 };
const character: Width = { empty: false, first: 1, tail: 0, run: 1 };

/**
 * @param param of the request that it comes from
 * @throws HpcserveError E_REQUEST_SCHEMA where a grammar is too large or too wide to be followed, or cannot be read
 */
export function checkGrammarWidth(gbnf: string, param: string): void {
  if (gbnf.length > chars_max) throw tooLarge(param, `${gbnf.length} characters, of at most ${chars_max}`);
  const rules = new WidthReader(gbnf, param).read();
  const known = new Map<string, Width>();
  // A rule comes after those that it refers to, so that most are looked at once; where one changes, those that refer to
  // it are looked at again.
  const order = inwardsOut(rules);
  const waiting = new Set(order);
  const referring = referringRules(rules);
  let parts_left = parts_max;
  for (const name of waiting) {
    waiting.delete(name);
    const rule = rules.get(name)!;
    parts_left -= rule.parts;
    if (parts_left < 0) throw tooWide(param);
    const width = rule.widthOf(known);
    if (width.run > widest) throw tooWide(param);
    if (same(width, known.get(name))) continue;
    known.set(name, width);
    for (const other of referring.get(name) ?? []) waiting.add(other);
  }
}

/** Names of the rules, each behind those that it refers to, except where they refer to each other. */
function inwardsOut(rules: ReadonlyMap<string, Rule>): string[] {
  const order: string[] = [];
  const seen = new Set<string>();
  for (const root of rules.keys()) {
    if (seen.has(root)) continue;
    seen.add(root);
    const path = [{ name: root, references: rules.get(root)!.references.values() }];
    for (let top = path.at(-1); top; top = path.at(-1)) {
      const { value: next, done } = top.references.next();
      if (done) order.push(path.pop()!.name);
      else if (!seen.has(next) && rules.has(next)) {
        seen.add(next);
        path.push({ name: next, references: rules.get(next)!.references.values() });
      }
    }
  }
  return order;
}

function referringRules(rules: ReadonlyMap<string, Rule>): Map<string, string[]> {
  const referring = new Map<string, string[]>();
  for (const [name, { references }] of rules)
    for (const other of references) {
      const names = referring.get(other);
      if (names) names.push(name);
      else referring.set(other, [name]);
    }
  return referring;
}

function tooLarge(param: string, because: string): HpcserveError {
  return new HpcserveError('E_REQUEST_SCHEMA', {
    what: 'the grammar is too large',
    because: `it has ${because}`,
    try: 'write repetition as `{m,n}`, and what is alike as one rule',
    details: { param },
  });
}

function tooWide(param: string): HpcserveError {
  return new HpcserveError('E_REQUEST_SCHEMA', {
    what: `the grammar may stand at more than ${widest} of its places at once`,
    because: 'parts of it that may be empty follow or contain each other many times',
    try: 'write repetition as one `{m,n}`, not around or beside parts that may be empty; in a schema, make members required',
    details: { param },
  });
}

function same(one: Width, other: Width | undefined): boolean {
  return (
    other?.empty === one.empty &&
    other.first === one.first &&
    other.tail === one.tail &&
    other.run === one.run
  );
}

/** The width of a part, as far as those of the rules that it refers to are known. */
type WidthOf = (known: ReadonlyMap<string, Width>) => Width;

interface Rule {
  widthOf: WidthOf;
  /** Names of rules in it. */
  references: ReadonlySet<string>;
  parts: number;
}

/** Reads GBNF (grammars/README.md of llama.cpp). */
class WidthReader {
  readonly #text: string;
  readonly #param: string;
  #at = 0;
  #depth = 0;
  /** Of the rule that is being read. */
  #references = new Set<string>();
  #parts = 0;
  /** Of all rules, repetition written out. */
  #elements = 0;

  constructor(text: string, param: string) {
    this.#text = text;
    this.#param = param;
  }

  read(): Map<string, Rule> {
    const rules = new Map<string, Rule>();
    this.#space(true);
    while (this.#at < this.#text.length) {
      const name = this.#take(/[a-zA-Z0-9-]+/y);
      this.#space(true);
      if (name === undefined || this.#take(/::=/y) === undefined) this.#refuse(`at character ${this.#at}`);
      this.#space(true);
      this.#references = new Set();
      this.#parts = 1;
      const widthOf = this.#choice(false);
      rules.set(name!, { widthOf, references: this.#references, parts: this.#parts });
      if (rules.size > rules_max) throw tooLarge(this.#param, `more than ${rules_max} rules`);
      this.#space(true);
    }
    return rules;
  }

  #choice(nested: boolean): WidthOf {
    const options = [this.#sequence(nested)];
    while (this.#take(/\|/y) !== undefined) {
      this.#space(true);
      options.push(this.#sequence(nested));
    }
    return (known) => either(options.map((option) => option(known)));
  }

  #sequence(nested: boolean): WidthOf {
    const parts: WidthOf[] = [];
    for (let part = this.#item(nested); part; part = this.#item(nested)) parts.push(part);
    return (known) => joined(parts.map((part) => part(known)));
  }

  /** One element with the repetition behind it; undefined where the sequence ends. */
  #item(nested: boolean): WidthOf | undefined {
    const from = this.#at;
    const element = this.#element();
    if (!element) return undefined;
    this.#parts++;
    // A text is repeated letter by letter, of all others a reference.
    const elements = this.#text[from] === '"' ? this.#at - from : 1;
    this.#space(nested);
    const bounds: { least: number; most: number }[] = [];
    for (let mark = this.#take(/[*+?]|\{[^}]*\}/y); mark; mark = this.#take(/[*+?]|\{[^}]*\}/y)) {
      bounds.push(repetitionOf(mark) ?? this.#refuse(`${mark} is no repetition`));
      this.#space(nested);
    }
    this.#elements += bounds.reduce(
      (count, { least, most }) => count * (most < many ? most : least + 1),
      elements,
    );
    if (this.#elements > elements_max)
      throw tooLarge(this.#param, `more than ${elements_max} characters where its repetition is written out`);
    if (bounds.length === 0) return element;
    return (known) => bounds.reduce(repeated, element(known));
  }

  #element(): WidthOf | undefined {
    const quoted = this.#take(/"(?:[^"\\]|\\[\s\S])*"/y);
    if (quoted !== undefined) return quoted === '""' ? () => nothing : () => character;
    if (this.#take(/\[(?:[^\]\\]|\\[\s\S])*\]|\./y) !== undefined) return () => character;
    if (this.#take(/\(/y) !== undefined) {
      if (++this.#depth > depth_max) this.#refuse(`its brackets are nested more than ${depth_max} deep`);
      this.#space(true);
      const inner = this.#choice(true);
      this.#depth--;
      if (this.#take(/\)/y) === undefined)
        this.#refuse(`a bracket is not closed before character ${this.#at}`);
      return inner;
    }
    const name = this.#take(/[a-zA-Z0-9-]+(?![a-zA-Z0-9-])(?!\s*::=)/y);
    if (name === undefined) return undefined;
    this.#references.add(name);
    return (known) => known.get(name) ?? character;
  }

  #refuse(because: string): never {
    throw new HpcserveError('E_REQUEST_SCHEMA', {
      what: 'the grammar cannot be read',
      because,
      details: { param: this.#param },
    });
  }

  #take(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0];
    if (found !== undefined) this.#at += found.length;
    return found;
  }

  /** @param lines a rule ends with its line, except inside of brackets and behind `|` */
  #space(lines: boolean): void {
    this.#take(lines ? /(?:\s|#[^\n]*)*/y : /(?:[ \t]|#[^\n]*)*/y);
  }
}

function repetitionOf(mark: string): { least: number; most: number } | undefined {
  if (mark === '?') return { least: 0, most: 1 };
  if (mark === '*' || mark === '+') return { least: mark === '+' ? 1 : 0, most: many };
  const counted = /^\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}$/.exec(mark);
  if (!counted) return undefined;
  const least = Number(counted[1]);
  return { least, most: counted[2] === '' ? least : Number(counted[3] || many) };
}

function repeated(element: Width, { least, most }: { least: number; most: number }): Width {
  if (most === 0) return nothing;
  // What may be empty may begin at each of its copies; of a loop there is one, which comes after itself.
  const all = element.empty && most < many;
  const copies = all ? most : 1;
  const others = all ? (most - 1) * element.first : most > 1 ? element.first : 0;
  return {
    empty: element.empty || least === 0,
    first: Math.min(many, copies * element.first),
    tail: Math.min(many, element.tail + others),
    run: Math.min(many, Math.max(element.run, copies * element.first, element.tail + others)),
  };
}

/** Of alternatives at one place the next character leaves few, so lists of words count less than copies do. */
const alternative_weight = 1 / 4;

function either(options: readonly Width[]): Width {
  const all = sum(options.map((option) => option.first));
  const empty = options.some((option) => option.empty);
  const first = empty || all < 1 ? all : Math.ceil(1 + (all - 1) * alternative_weight);
  return {
    empty,
    first,
    tail: Math.max(...options.map(({ tail }) => tail)),
    run: Math.max(first, ...options.map(({ run }) => run)),
  };
}

function joined(all: readonly Width[]): Width {
  // What is always empty would be gone through again from each part before it.
  const parts = all.filter(({ empty, first, tail, run }) => !empty || first > 0 || tail > 0 || run > 0);
  let run = 0;
  let tail = 0;
  for (const [index, part] of parts.entries()) {
    let reach = part.tail;
    let next = index + 1;
    for (; next < parts.length; next++) {
      reach += parts[next]!.first;
      if (!parts[next]!.empty || reach > widest) break;
    }
    run = Math.max(run, part.run, Math.min(many, reach));
    if (next === parts.length) tail = Math.max(tail, reach);
    if (run > widest) break;
  }
  const full = parts.findIndex(({ empty }) => !empty);
  const first = sum((full < 0 ? parts : parts.slice(0, full + 1)).map((part) => part.first));
  return { empty: full < 0, first, tail, run: Math.max(run, first) };
}

function sum(values: readonly number[]): number {
  return Math.min(
    many,
    values.reduce((total, value) => total + value, 0),
  );
}
