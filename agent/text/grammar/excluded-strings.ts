import { HpcserveError } from '../../../spec/errors/error.ts';
import { characterInString, complement, normalise } from './character-set.ts';
import { either, type GrammarBuilder, literal } from './gbnf.ts';

/** Longest name that is kept from others: the grammar goes down by a rule for each letter. */
const name_chars_max = 1000;
/** Of compiling a letter of a name: its rule, and that of all other letters. */
const steps_per_letter = 10;

interface Node {
  children: Map<number, Node>;
  ends: boolean;
}

/**
 * A JSON string (with its quotes) that is none of the given ones: how `additionalProperties` avoids names
 * that have their own schema. A trie of the names; a text leaves it by a character that no name has there,
 * or by ending where no name ends.
 *
 * @param character rule of one character of a JSON string
 */
export function stringExcept(builder: GrammarBuilder, names: readonly string[], character: string): string {
  const root: Node = { children: new Map(), ends: false };
  for (const name of names) {
    if (name.length > name_chars_max)
      throw new HpcserveError('E_REQUEST_SCHEMA', {
        what: `a property has a name of ${name.length} characters, and others beside it are allowed`,
        try: `set \`additionalProperties: false\`, or use names of at most ${name_chars_max} characters`,
      });
    builder.steps.spend(steps_per_letter * name.length);
    let node = root;
    for (const letter of name) {
      const code = letter.codePointAt(0)!;
      let child = node.children.get(code);
      if (!child) {
        child = { children: new Map(), ends: false };
        node.children.set(code, child);
      }
      node = child;
    }
    node.ends = true;
  }
  const rest = (node: Node): string => {
    const alternatives: string[] = [];
    for (const [code, child] of node.children) {
      const one = characterInString([[code, code]]);
      // A name with a control character that is not generated cannot be met either.
      if (one !== undefined) alternatives.push(`${one} ${builder.add('except', rest(child))}`);
    }
    // Escapes could spell the same letter in another way, so a text leaves the trie by plain characters.
    const other = complement(normalise([...node.children.keys()].map((code) => [code, code] as const)));
    const leaves = characterInString(other);
    if (leaves !== undefined) alternatives.push(`${leaves} ${character}*`);
    if (!node.ends) alternatives.push('""');
    return either(alternatives);
  };
  return `${literal('"')} ${builder.add('except', rest(root))} ${literal('"')}`;
}
