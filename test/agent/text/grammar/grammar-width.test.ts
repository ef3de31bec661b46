import { expect, it } from 'vitest';
import { checkGrammarWidth } from '../../../../agent/text/grammar/grammar-width.ts';
import { jsonObjectGrammar, jsonSchemaGrammar } from '../../../../agent/text/grammar/json-grammar.ts';
import type { JsonValue } from '../../../../agent/text/grammar/schema-keywords.ts';
import type { HpcserveError } from '../../../../spec/errors/error.ts';

const check = (grammar: string) => () => checkGrammarWidth(grammar, 'grammar');

it.each([
  ['copies of what may be empty', 'root ::= (("a"?){30}){30}'],
  ['a run of parts that may be empty', `root ::= ${'"a"? '.repeat(150)}`],
  ['the same by rules', `root ::= ${'x '.repeat(20)}\nx ::= ${'"a"? "b"* '.repeat(10)}`],
  [
    'alternatives beyond number',
    `root ::= ${Array.from({ length: 600 }, (_, at) => `"a${at}"`).join(' | ')}`,
  ],
  ['rules that grow by each other', 'root ::= root root "a"? | "b"?'],
])('refuses %s', (_, grammar) => {
  expect(check(grammar)).toThrow(/more than 100 of its places/);
});

it.each([
  ['what is no rule', 'root = "a"'],
  ['an open bracket', 'root ::= ("a"'],
  ['a repetition that is none', 'root ::= "a"{x}'],
])('refuses %s', (_, grammar) => {
  expect(check(grammar)).toThrow(/cannot be read/);
});

it.each([
  ['a text', 'root ::= "yes" | "no"'],
  ['long repetition', 'root ::= [a-z]{0,2000} "." [^"\\]\\\\]*'],
  ['recursion', 'root ::= "(" root ")" | [ \\t]* # and a comment\n'],
  [
    'several lines',
    'root ::=\n  item (\n    "," ws item\n  )* |\n  "none"\nitem ::= [0-9]+ ("." [0-9]{1,3})?\nws ::= [ \\t\\n]*\n',
  ],
  [
    'an arithmetic of loops',
    'root ::= (expr "=" term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" expr ")"',
  ],
])('takes %s', (_, grammar) => {
  expect(check(grammar)).not.toThrow();
});

it('takes what schemas become: objects with many optional members, bounded texts, numbers and patterns', () => {
  const properties: Record<string, JsonValue> = Object.fromEntries(
    Array.from({ length: 60 }, (_, at): [string, JsonValue] => [
      `member_${at}`,
      at % 3 === 0
        ? { type: 'string', maxLength: 400 }
        : at % 3 === 1
          ? { type: 'integer', minimum: -12_345, maximum: 6_789_012 }
          : { type: 'array', items: { enum: ['a', 'b', null, 7] }, maxItems: 50 },
    ]),
  );
  for (const grammar of [
    jsonObjectGrammar(),
    jsonSchemaGrammar({ type: 'object', properties }, ['schema']),
    jsonSchemaGrammar({ type: 'object', properties, required: Object.keys(properties) }, ['schema']),
    jsonSchemaGrammar({ type: 'string', pattern: '^(\\d{3}-)?[a-z]{2,40}(\\.[a-z]+)*$' }, ['schema']),
    jsonSchemaGrammar(
      { type: 'array', items: { enum: Array.from({ length: 300 }, (_, at) => `word${at}`) } },
      ['schema'],
    ),
    jsonSchemaGrammar({ anyOf: [{ type: 'string' }, { type: 'null' }, { type: 'object' }] }, ['schema']),
  ])
    expect(check(grammar)).not.toThrow();
});

const rules = (count: number, body: (at: number) => string): string =>
  Array.from({ length: count }, (_, at) => `${at === 0 ? 'root' : `r${at}`} ::= ${body(at)}`).join('\n');

it.each([
  ['rules that refer to the one before', rules(15_000, (at) => (at < 2 ? '"a"' : `r${at - 1}`))],
  ['rules that refer to the one behind', rules(15_000, (at) => (at < 14_999 ? `r${at + 1}` : '"a"'))],
  ['texts without a character', `root ::= ${'"" '.repeat(80_000)}`],
])('reads %s in time that grows with their length', (_, grammar) => {
  const began_ms = performance.now();
  expect(check(grammar)).not.toThrow();
  expect(performance.now() - began_ms).toBeLessThan(5000);
});

it.each([
  ['brackets in brackets', `root ::= ${'('.repeat(100_000)}"a"`, /nested more than 200 deep/],
  ['long texts repeated', rules(30, () => `"${'a'.repeat(1000)}"{2000}`), /repetition is written out/],
  ['more rules than anybody writes', rules(20_001, () => '"a"'), /more than 20000 rules/],
  ['more text than anybody writes', `root ::= "${'a'.repeat(1024 * 1024)}"`, /characters, of at most/],
])('refuses %s', (_, grammar, because) => {
  const because_of = (): string => {
    try {
      check(grammar)();
    } catch (error) {
      return (error as HpcserveError).because.join();
    }
    return 'nothing';
  };
  expect(because_of()).toMatch(because);
});
