type Node =
  | { kind: 'class'; negated: boolean; ranges: [number, number][] }
  | { kind: 'text'; codes: number[] }
  | { kind: 'rule'; name: string }
  | { kind: 'sequence'; nodes: Node[] }
  | { kind: 'choice'; nodes: Node[] }
  | { kind: 'repeat'; node: Node; min: number; max: number };

/**
 * A small reader of GBNF for tests: matches texts and makes random ones, independently of libllama and of
 * the code that writes grammars.
 */
export class Gbnf {
  readonly #rules = new Map<string, Node>();
  readonly #depths = new Map<string, number>();

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const rule = /^([a-zA-Z0-9-]+) ::= (.*)$/s.exec(line);
      if (!rule) {
        if (line.trim() !== '') throw new Error(`not a rule: ${line}`);
        continue;
      }
      if (this.#rules.has(rule[1]!)) throw new Error(`rule ${rule[1]} twice`);
      this.#rules.set(rule[1]!, new Reader(rule[2]!).read());
    }
    for (let changed = true; changed; ) {
      changed = false;
      for (const [name, node] of this.#rules) {
        const depth = this.#depth(node) + 1;
        if (depth < (this.#depths.get(name) ?? Number.POSITIVE_INFINITY)) {
          this.#depths.set(name, depth);
          changed = true;
        }
      }
    }
  }

  matches(text: string): boolean {
    const codes = Array.from(text, (character) => character.codePointAt(0)!);
    const memo = new Map<string, number[]>();
    const ends = (node: Node, at: number): number[] => {
      switch (node.kind) {
        case 'class': {
          if (at >= codes.length) return [];
          const inside = node.ranges.some(([low, high]) => low <= codes[at]! && codes[at]! <= high);
          return inside !== node.negated ? [at + 1] : [];
        }
        case 'text':
          return node.codes.every((code, index) => codes[at + index] === code)
            ? [at + node.codes.length]
            : [];
        case 'rule': {
          const key = `${node.name}@${at}`;
          const known = memo.get(key);
          if (known) return known;
          const found = ends(this.#rule(node.name), at);
          memo.set(key, found);
          return found;
        }
        case 'choice':
          return [...new Set(node.nodes.flatMap((child) => ends(child, at)))];
        case 'sequence':
          return node.nodes.reduce<number[]>(
            (positions, child) => [...new Set(positions.flatMap((position) => ends(child, position)))],
            [at],
          );
        case 'repeat': {
          const found = new Set<number>();
          let positions = [at];
          if (node.min === 0) found.add(at);
          for (let count = 1; count <= node.max && positions.length > 0; count++) {
            const next = new Set(positions.flatMap((position) => ends(node.node, position)));
            if (count >= node.min) {
              const fresh = [...next].filter((position) => !found.has(position));
              for (const position of fresh) found.add(position);
              positions = fresh;
            } else positions = [...next];
          }
          return [...found];
        }
      }
    };
    return ends(this.#rule('root'), 0).includes(codes.length);
  }

  /** @param random gives numbers in [0, 1) */
  generate(random: () => number): string {
    let out = '';
    const write = (node: Node, budget: number): void => {
      switch (node.kind) {
        case 'class': {
          out += String.fromCodePoint(pick(node, random));
          return;
        }
        case 'text':
          out += String.fromCodePoint(...node.codes);
          return;
        case 'rule':
          write(this.#rule(node.name), budget - 1);
          return;
        case 'sequence':
          for (const child of node.nodes) write(child, budget - 1);
          return;
        case 'choice': {
          const least = Math.min(...node.nodes.map((child) => this.#depth(child)));
          const possible = node.nodes.filter(
            (child) => budget > this.#depth(child) || this.#depth(child) === least,
          );
          write(possible[Math.floor(random() * possible.length)]!, budget - 1);
          return;
        }
        case 'repeat': {
          const extra = budget > this.#depth(node.node) + 2 ? Math.min(node.max - node.min, 4) : 0;
          const times = node.min + Math.floor(random() * (extra + 1));
          for (let count = 0; count < times; count++) write(node.node, budget - 1);
        }
      }
    };
    write({ kind: 'rule', name: 'root' }, 60);
    return out;
  }

  #rule(name: string): Node {
    const node = this.#rules.get(name);
    if (!node) throw new Error(`no rule ${name}`);
    return node;
  }

  /** Least nesting with which the node can end. */
  #depth(node: Node): number {
    switch (node.kind) {
      case 'rule':
        return this.#depths.get(node.name) ?? Number.POSITIVE_INFINITY;
      case 'sequence':
        return Math.max(0, ...node.nodes.map((child) => this.#depth(child)));
      case 'choice':
        return Math.min(...node.nodes.map((child) => this.#depth(child)));
      case 'repeat':
        return node.min === 0 ? 0 : this.#depth(node.node);
      default:
        return 0;
    }
  }
}

function pick(node: { negated: boolean; ranges: [number, number][] }, random: () => number): number {
  if (!node.negated) {
    const [low, high] = node.ranges[Math.floor(random() * node.ranges.length)]!;
    const code = low + Math.floor(random() * (Math.min(high, low + 200) - low + 1));
    return code >= 0xd800 && code <= 0xdfff ? low : code;
  }
  const pool = [0x61, 0x7a, 0x30, 0x20, 0xe9, 0x1f600, 0x7d, 0x2c, 0x3a];
  const allowed = pool.filter((code) => !node.ranges.some(([low, high]) => low <= code && code <= high));
  return allowed[Math.floor(random() * allowed.length)]!;
}

class Reader {
  #at = 0;
  readonly #text: string;
  constructor(text: string) {
    this.#text = text;
  }

  read(): Node {
    const node = this.#choice();
    if (this.#at < this.#text.length)
      throw new Error(`unexpected ${this.#text.slice(this.#at)} in ${this.#text}`);
    return node;
  }

  #choice(): Node {
    const nodes = [this.#sequence()];
    while (this.#text[this.#at] === '|') {
      this.#at++;
      nodes.push(this.#sequence());
    }
    return nodes.length === 1 ? nodes[0]! : { kind: 'choice', nodes };
  }

  #sequence(): Node {
    const nodes: Node[] = [];
    for (;;) {
      while (this.#text[this.#at] === ' ') this.#at++;
      const character = this.#text[this.#at];
      if (character === undefined || character === '|' || character === ')') break;
      let node = this.#atom(character);
      const counted = /^(\*|\+|\?|\{(\d+)(,(\d*))?\})/.exec(this.#text.slice(this.#at));
      if (counted) {
        this.#at += counted[0].length;
        const [all, , from, comma, to] = counted;
        const infinite = Number.POSITIVE_INFINITY;
        const range: [number, number] =
          all === '*'
            ? [0, infinite]
            : all === '+'
              ? [1, infinite]
              : all === '?'
                ? [0, 1]
                : [Number(from), comma === undefined ? Number(from) : to ? Number(to) : infinite];
        node = { kind: 'repeat', node, min: range[0], max: range[1] };
      }
      nodes.push(node);
    }
    return nodes.length === 1 ? nodes[0]! : { kind: 'sequence', nodes };
  }

  #atom(character: string): Node {
    if (character === '(') {
      this.#at++;
      const node = this.#choice();
      if (this.#text[this.#at++] !== ')') throw new Error(`no ) in ${this.#text}`);
      return node;
    }
    if (character === '"') {
      this.#at++;
      const codes: number[] = [];
      while (this.#text[this.#at] !== '"') codes.push(this.#character());
      this.#at++;
      return { kind: 'text', codes };
    }
    if (character === '[') {
      this.#at++;
      const negated = this.#text[this.#at] === '^';
      if (negated) this.#at++;
      const ranges: [number, number][] = [];
      while (this.#text[this.#at] !== ']') {
        const low = this.#character();
        if (this.#text[this.#at] === '-' && this.#text[this.#at + 1] !== ']') {
          this.#at++;
          ranges.push([low, this.#character()]);
        } else ranges.push([low, low]);
      }
      this.#at++;
      return { kind: 'class', negated, ranges };
    }
    const name = /^[a-zA-Z0-9-]+/.exec(this.#text.slice(this.#at));
    if (!name) throw new Error(`unexpected ${character} at ${this.#at} of ${this.#text}`);
    this.#at += name[0].length;
    return { kind: 'rule', name: name[0] };
  }

  #character(): number {
    const escaped = /^\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr"\\[\]])/.exec(
      this.#text.slice(this.#at),
    );
    if (escaped) {
      this.#at += escaped[0].length;
      const name = escaped[1]!;
      if (name.length > 1) return Number.parseInt(name.slice(1), 16);
      return { t: 9, n: 10, r: 13 }[name] ?? name.charCodeAt(0);
    }
    const code = this.#text.codePointAt(this.#at);
    if (code === undefined || code === 0x5c) throw new Error(`bad character at ${this.#at} of ${this.#text}`);
    this.#at += code > 0xffff ? 2 : 1;
    return code;
  }
}
