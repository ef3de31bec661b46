import { type GrammarBuilder, literal } from './gbnf.ts';

/** Names of the rules that all JSON grammars share; see RFC 8259. */
export interface JsonRules {
  /** At most a space, or a line break with indentation: unbounded white space lets small models run on for ever. */
  space: string;
  /** One character of a string, also as an escape; no lone surrogates, so one rule is one code point. */
  character: string;
  string: string;
  integer: string;
  number: string;
  object: string;
  array: string;
  value: string;
}

export function addJsonRules(builder: GrammarBuilder): JsonRules {
  const space = builder.add('space', '(" " | "\\n" [ \\t]{0,20})?');
  const character = builder.add(
    'character',
    '[^"\\\\\\x7F\\x00-\\x1F] | "\\\\" (["\\\\bfnrt/] | "u" ([0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))',
  );
  const string = builder.add('string', `"\\"" ${character}* "\\""`);
  const integer = builder.add('integer', '"-"? ("0" | [1-9] [0-9]{0,15})');
  const number = builder.add('number', `${integer} ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?`);
  const value = builder.reserve('value');
  const member = builder.add('member', `${string} ":" ${space} ${value}`);
  const object = builder.add('object', `"{" ${space} (${member} ("," ${space} ${member})* ${space})? "}"`);
  const array = builder.add('array', `"[" ${space} (${value} ("," ${space} ${value})* ${space})? "]"`);
  builder.define(
    value,
    `${object} | ${array} | ${string} | ${number} | ${['true', 'false', 'null'].map(literal).join(' | ')}`,
  );
  return { space, character, string, integer, number, object, array, value };
}
