import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { jsonObjectGrammar, jsonSchemaGrammar } from '../../../../agent/text/grammar/json-grammar.ts';
import type { JsonValue } from '../../../../agent/text/grammar/schema-keywords.ts';
import { HpcserveError } from '../../../../spec/errors/error.ts';
import { Gbnf } from '../gbnf.ts';

const ajv = new Ajv2020({ strict: false, validateFormats: true });
formats.default(ajv);

/** A small generator with a seed, so that a failure repeats. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const grammarOf = (schema: JsonValue) => new Gbnf(jsonSchemaGrammar(schema, ['schema']));

/** Sentences of the grammar must be valid under the schema, as an independent validator sees it. */
function expectSound(schema: JsonValue, runs = 60): void {
  const grammar = grammarOf(schema);
  const validate = ajv.compile(schema as object | boolean);
  for (let seed = 0; seed < runs; seed++) {
    const text = grammar.generate(randomFrom(seed * 7919 + 1));
    const value: unknown = JSON.parse(text);
    if (!validate(value)) throw new Error(`${text}\nis not valid: ${ajv.errorsText(validate.errors)}`);
    expect(grammar.matches(text)).toBe(true);
  }
}

const tree: JsonValue = {
  $defs: {
    node: {
      type: 'object',
      properties: {
        value: { type: 'integer' },
        children: { type: 'array', items: { $ref: '#/$defs/node' } },
      },
      required: ['value', 'children'],
      additionalProperties: false,
    },
  },
  $ref: '#/$defs/node',
};

/** Schema, texts it must accept, texts it must refuse. */
const cases: [string, JsonValue, string[], string[]][] = [
  ['any value', true, ['1', '{"a": [null, "x"]}', '-1.5e3'], ['', '{', '01']],
  ['boolean', { type: 'boolean' }, ['true', 'false'], ['1', 'null']],
  ['nullable', { type: ['string', 'null'] }, ['"a"', 'null'], ['1']],
  ['enum', { enum: ['a"b', 1, null, { x: [1] }] }, ['"a\\"b"', '1', 'null', '{"x":[1]}'], ['"a"', '2']],
  ['enum filtered by type', { type: 'number', enum: ['a', 1, 2.5] }, ['1', '2.5'], ['"a"']],
  ['const', { const: 'é' }, ['"é"'], ['"e"']],
  [
    'object',
    {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'string' }, c: { type: 'boolean' } },
      required: ['a', 'c'],
    },
    ['{"a": 1, "b": "x", "c": true}', '{"a":1,"c":false}', '{\n  "a": 1,\n  "c": true\n}'],
    ['{"a": 1}', '{"c": true}', '{"a": 1, "c": true, "d": 1}', '{"a": 1 "c": true}', '{"a":1,"c":true,}'],
  ],
  [
    'all optional',
    { type: 'object', properties: { a: { type: 'null' }, b: { type: 'null' } }, additionalProperties: false },
    ['{}', '{"a": null}', '{"b": null}', '{"a": null, "b": null}'],
    ['{,}', '{"a": null "b": null}', '{"c": null}'],
  ],
  [
    'additional properties with a schema',
    {
      type: 'object',
      properties: { ab: { type: 'integer' } },
      required: ['ab'],
      additionalProperties: { type: 'boolean' },
    },
    ['{"ab": 1}', '{"ab": 1, "a": true, "abc": false, "": true}'],
    ['{"ab": 1, "ab": true}', '{"ab": 1, "x": 2}', '{"a": true}'],
  ],
  ['open object', { type: 'object' }, ['{}', '{"x": [1, {"y": null}]}'], ['[]']],
  [
    'array bounds',
    { type: 'array', items: { type: 'boolean' }, minItems: 2, maxItems: 3 },
    ['[true, false]', '[true,true,true]'],
    ['[]', '[true]', '[true, true, true, true]', '[1, 2]'],
  ],
  ['empty array', { type: 'array', maxItems: 0 }, ['[]'], ['[1]']],
  [
    'tuple',
    { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'string' }], items: false },
    ['[1, "a"]'],
    ['["a", 1]', '[1, "a", 2]'],
  ],
  [
    'tuple with more',
    { type: 'array', prefixItems: [{ type: 'integer' }], items: { type: 'null' }, minItems: 2 },
    ['[1, null]', '[1, null, null]'],
    ['[1]', '[1, 2]'],
  ],
  [
    'length',
    { type: 'string', minLength: 2, maxLength: 4 },
    ['"ab"', '"a\\n\\u00e9d"', '"😀😀"'],
    ['"a"', '"abcde"'],
  ],
  [
    'long string',
    { type: 'string', minLength: 130, maxLength: 700 },
    [`"${'x'.repeat(130)}"`, `"${'x'.repeat(699)}"`, `"${'x'.repeat(700)}"`, `"${'x'.repeat(413)}"`],
    [`"${'x'.repeat(129)}"`, `"${'x'.repeat(701)}"`],
  ],
  ['no lone surrogates', { type: 'string' }, ['"\\u00e9"'], ['"\\ud83d"', '"\u0001"', '"a\nb"']],
  [
    'pattern',
    { type: 'string', pattern: '^[A-Z]{2}-\\d{3,4}(x|y)?$' },
    ['"AB-123"', '"AB-1234x"'],
    ['"A-123"', '"AB-12"', '"AB-123z"'],
  ],
  ['pattern without anchors', { type: 'string', pattern: 'ab+' }, ['"ab"', '"xxabbbyy"'], ['"a"', '"ba"']],
  [
    'pattern with escapes in JSON',
    { type: 'string', pattern: '^["\\\\]\\.$' },
    ['"\\"."', '"\\\\."'],
    ['"x."'],
  ],
  ['negated class', { type: 'string', pattern: '^[^a-c\\d]$' }, ['"d"', '"\\""'], ['"a"', '"5"', '""']],
  [
    'date',
    { type: 'string', format: 'date' },
    ['"2024-02-28"', '"1999-12-31"'],
    ['"2024-02-30"', '"2024-13-01"', '"2024-1-1"'],
  ],
  [
    'time',
    { type: 'string', format: 'time' },
    ['"23:59:59Z"', '"00:00:00.5+02:00"'],
    ['"24:00:00Z"', '"12:00"'],
  ],
  ['uuid', { type: 'string', format: 'uuid' }, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']],
  ['integer', { type: 'integer' }, ['0', '-12', '123456'], ['1.0', '01', '+1', '1e3']],
  [
    'range',
    { type: 'integer', minimum: -7, maximum: 1234 },
    ['-7', '0', '9', '10', '999', '1234'],
    ['-8', '1235', '10000', '-0'],
  ],
  [
    'open range',
    { type: 'integer', exclusiveMinimum: 17 },
    ['18', '99', '100', '123456789'],
    ['17', '9', '-1'],
  ],
  [
    'number range',
    { type: 'number', minimum: 0, maximum: 1 },
    ['0', '1', '0.5', '0.123', '1.000'],
    ['1.1', '-0.1', '2'],
  ],
  [
    'tight number range',
    { type: 'number', exclusiveMinimum: 0.25, maximum: 0.5 },
    ['0.26', '0.2501', '0.3', '0.5'],
    ['0.25', '0.51', '0.2', '0', '1'],
  ],
  [
    'anyOf',
    { anyOf: [{ type: 'integer' }, { type: 'object', properties: { a: { const: 1 } }, required: ['a'] }] },
    ['5', '{"a": 1}'],
    ['"x"', '{}'],
  ],
  [
    'oneOf with discriminator',
    {
      oneOf: [
        {
          type: 'object',
          properties: { kind: { const: 'a' }, x: { type: 'integer' } },
          required: ['kind', 'x'],
        },
        { type: 'object', properties: { kind: { const: 'b' } }, required: ['kind'] },
      ],
      discriminator: { propertyName: 'kind' },
    },
    ['{"kind": "a", "x": 1}', '{"kind": "b"}'],
    ['{"kind": "a"}', '{"kind": "b", "x": 1}'],
  ],
  [
    'allOf',
    {
      allOf: [
        { type: 'object', properties: { a: { type: 'integer', minimum: 3 } }, required: ['a'] },
        { properties: { a: { maximum: 5 }, b: { type: 'null' } }, required: ['b'] },
      ],
    },
    ['{"a": 3, "b": null}', '{"a": 5, "b": null}'],
    ['{"a": 2, "b": null}', '{"a": 6, "b": null}', '{"a": 3}'],
  ],
  [
    'keywords beside anyOf',
    {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'integer' } },
      anyOf: [{ required: ['a'] }, { required: ['b'] }],
    },
    ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}'],
    ['{}'],
  ],
  [
    'recursion',
    tree,
    ['{"value": 1, "children": [{"value": 2, "children": []}]}'],
    ['{"value": 1}', '{"value": 1, "children": [1]}'],
  ],
  [
    'reference with siblings',
    { $defs: { n: { type: 'integer' } }, $ref: '#/$defs/n', minimum: 5, maximum: 6 },
    ['5', '6'],
    ['4', '7'],
  ],
];

describe('JSON schema to grammar', () => {
  it.each(cases)('%s: accepts and refuses as the schema does', (_, schema, accepted, refused) => {
    const grammar = grammarOf(schema);
    const validate = ajv.compile(schema as object | boolean);
    for (const text of accepted) {
      expect(validate(JSON.parse(text)), `${text} under the schema`).toBe(true);
      expect(grammar.matches(text), text).toBe(true);
    }
    for (const text of refused) expect(grammar.matches(text), text).toBe(false);
  });

  it.each(cases)('%s: whatever the grammar makes is valid', (_, schema) => {
    expectSound(schema);
  });

  it('integer ranges hold exactly their integers', () => {
    fc.assert(
      fc.property(fc.integer({ min: -1200, max: 1200 }), fc.nat(1500), (low, width) => {
        const grammar = grammarOf({ type: 'integer', minimum: low, maximum: low + width });
        for (const value of [
          low - 11,
          low - 1,
          low,
          low + 1,
          low + (width >> 1),
          low + width,
          low + width + 1,
          low + width + 13,
        ])
          expect(grammar.matches(String(value)), `${value} in [${low}, ${low + width}]`).toBe(
            value >= low && value <= low + width,
          );
      }),
      { numRuns: 300 },
    );
  });

  it('number ranges hold what they make, and nothing outside', () => {
    const bound = fc.integer({ min: -3000, max: 3000 }).map((value) => value / 100);
    fc.assert(
      fc.property(
        bound,
        bound,
        fc.boolean(),
        fc.boolean(),
        fc.nat(),
        bound,
        (a, b, openLow, openHigh, seed, other) => {
          const [low, high] = a < b ? [a, b] : [b, a];
          if (low === high) return;
          const grammar = grammarOf({
            type: 'number',
            [openLow ? 'exclusiveMinimum' : 'minimum']: low,
            [openHigh ? 'exclusiveMaximum' : 'maximum']: high,
          });
          const inside = (value: number) =>
            (openLow ? value > low : value >= low) && (openHigh ? value < high : value <= high);
          const made = grammar.generate(randomFrom(seed));
          expect(inside(Number(made)), `${made} in ${low}..${high}`).toBe(true);
          if (grammar.matches(String(other))) expect(inside(other)).toBe(true);
          else if (!String(other).startsWith('-0'))
            expect(inside(other) && other !== 0, `${other} in ${low}..${high}`).toBe(false);
        },
      ),
      { numRuns: 400 },
    );
  });

  it('random schemas: whatever the grammar makes is valid', () => {
    const leaf: fc.Arbitrary<JsonValue> = fc.oneof(
      fc.constantFrom<JsonValue>(
        { type: 'boolean' },
        { type: 'null' },
        { type: 'string', maxLength: 3 },
        { type: 'number' },
        { enum: ['x', 2, false] },
        { type: 'string', format: 'date' },
        { type: 'string', pattern: '^a?b{2}$' },
      ),
      fc
        .tuple(fc.integer({ min: -50, max: 50 }), fc.nat(60))
        .map(([low, width]): JsonValue => ({ type: 'integer', minimum: low, maximum: low + width })),
    );
    const { schema } = fc.letrec<{ schema: JsonValue }>((tie) => ({
      schema: fc.oneof(
        { maxDepth: 3, withCrossShrink: true },
        leaf,
        fc
          .tuple(
            fc.uniqueArray(fc.constantFrom('a', 'b', 'ab', 'c d', 'é"'), { maxLength: 4 }),
            fc.infiniteStream(tie('schema')),
            fc.nat(15),
            fc.constantFrom<JsonValue>(true, false, { type: 'integer' }),
          )
          .map(
            ([names, schemas, mask, additionalProperties]): JsonValue => ({
              type: 'object',
              properties: Object.fromEntries(names.map((name) => [name, schemas.next().value as JsonValue])),
              required: names.filter((_, index) => (mask >> index) & 1),
              additionalProperties,
            }),
          ),
        fc.tuple(tie('schema'), fc.nat(2), fc.nat(2)).map(
          ([items, minItems, more]): JsonValue => ({
            type: 'array',
            items,
            minItems,
            maxItems: minItems + more,
          }),
        ),
        fc.array(tie('schema'), { minLength: 1, maxLength: 3 }).map((anyOf): JsonValue => ({ anyOf })),
      ),
    }));
    fc.assert(
      fc.property(schema, (value) => {
        expectSound(value, 3);
      }),
      { numRuns: 150 },
    );
  });

  it.each<[JsonValue, RegExp]>([
    [{ type: 'object', properties: { a: { not: {} } } }, /schema\.properties\.a\.not.*`not`/],
    [{ type: 'array', uniqueItems: true }, /uniqueItems/],
    [{ type: 'number', multipleOf: 0.5 }, /multipleOf/],
    [{ type: 'object', patternProperties: {} }, /patternProperties/],
    [{ type: 'strnig' }, /strnig.*is not one of object/],
    [{ typ: 'string' }, /did you mean `type`/],
    [{ type: 'string', format: 'iri' }, /iri.*is not one of date/],
    [{ type: 'string', pattern: '(?=a)b' }, /lookaround/],
    [{ type: 'string', pattern: '(a)\\1' }, /escape `\\1`/],
    [{ type: 'string', pattern: 'a{2000}' }, /up to 1000/],
    [{ type: 'string', pattern: '(a' }, /without its `\)`/],
    [{ type: 'integer', minimum: 5, maximum: 4 }, /no integer lies/],
    [{ type: 'integer', minimum: 'x' }, /must be a number/],
    [{ $ref: 'https://example.org/s' }, /only references inside/],
    [{ $ref: '#/$defs/none' }, /does not exist/],
    [{ $ref: '#' }, /leads back to itself/],
    [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, /may both be valid/],
    [{ allOf: [{ type: 'integer' }, { type: 'string' }] }, /both integer and string/],
    [{ enum: [] }, /must not be empty/],
    [{ type: 'object', required: ['a'], additionalProperties: false }, /a is required, but/],
    [false, /allows no value/],
    [3, /must be an object/],
    [{ type: 'array', minItems: 3, maxItems: 2 }, /minItems 3/],
  ])('%j is refused by name', (schema, message) => {
    let thrown: unknown;
    try {
      jsonSchemaGrammar(schema, ['schema']);
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(HpcserveError);
    expect((thrown as HpcserveError).code).toBe('E_REQUEST_SCHEMA');
    expect((thrown as HpcserveError).message).toMatch(message);
  });

  it('a hostile schema ends quickly, with an error', () => {
    let schema: JsonValue = { type: 'string' };
    for (let depth = 0; depth < 500; depth++) schema = { type: 'array', items: schema };
    expect(() => jsonSchemaGrammar(schema, ['schema'])).toThrow(/nested more than/);
    const wide = (letter: string) =>
      Array.from({ length: 60 }, (_, index) => ({ properties: { [`${letter}${index}`]: { type: 'null' } } }));
    const start = performance.now();
    expect(() =>
      jsonSchemaGrammar({ allOf: ['a', 'b', 'c'].map((letter) => ({ anyOf: wide(letter) })) } as JsonValue, [
        'schema',
      ]),
    ).toThrow(/more than 1000 combinations/);
    expect(performance.now() - start).toBeLessThan(10_000);
  });

  const count = <T>(many: number, make: (at: number) => T): T[] =>
    Array.from({ length: many }, (_, at) => make(at));
  const chain = (make: (next: string, at: number) => JsonValue): JsonValue => ({
    $defs: Object.fromEntries(
      count(41, (at): [string, JsonValue] => [
        `a${at}`,
        at === 40 ? { type: ['object', 'string'] } : make(`#/$defs/a${at + 1}`, at),
      ]),
    ),
    $ref: '#/$defs/a0',
  });

  it('references with the same beside them share a rule, also where they come back to themselves', () => {
    const deep = chain((next) => ({
      type: 'object',
      properties: { l: { $ref: next, type: 'object' }, r: { $ref: next, type: 'object', title: 'right' } },
    }));
    const began_ms = performance.now();
    const grammar = jsonSchemaGrammar(deep, ['schema']);
    expect(performance.now() - began_ms).toBeLessThan(5000);
    expect(grammar.length).toBeLessThan(50_000);
    expectSound({
      $defs: {
        node: {
          type: 'object',
          properties: { next: { $ref: '#/$defs/node', required: ['next'] }, x: { const: 1 } },
        },
      },
      $ref: '#/$defs/node',
    });
  });

  it.each<[string, JsonValue]>([
    [
      'alternatives that differ at every level',
      chain((next, at) => ({
        anyOf: ['minLength', 'maxLength'].map((keyword) => ({
          $ref: next,
          [keyword]: keyword === 'minLength' ? at : 200 + at,
        })),
      })),
    ],
    ['conjunctions of conjunctions', chain((next) => ({ allOf: [{ $ref: next }, { $ref: next }] }))],
    [
      'a large schema with something else beside each reference',
      {
        $defs: {
          large: { type: 'object', properties: Object.fromEntries(count(3000, (at) => [`p${at}`, true])) },
        },
        anyOf: count(2000, (at) => ({ $ref: '#/$defs/large', required: [`p${at}`] })),
      },
    ],
    [
      'parts that are joined one by one',
      { allOf: count(6000, (at) => ({ properties: { [`x${at}`]: true } })) },
    ],
    [
      'objects that are compared each with each',
      {
        oneOf: count(3000, (at) => ({ type: 'object', properties: { k: { const: at } }, required: ['k'] })),
      },
    ],
    [
      'numbers of 300 digits',
      { anyOf: count(4000, (at) => ({ type: 'integer', minimum: at, maximum: 1e300 })) },
    ],
    ['classes of characters', { type: 'string', pattern: '[^a-z0-9\\W]'.repeat(18_000) }],
    [
      'long names to be avoided',
      {
        properties: Object.fromEntries(count(500, (at) => ['y'.repeat(400) + at, true])),
        additionalProperties: { type: 'null' },
      },
    ],
  ])('%s: refused by a count of steps, at once', (_, schema) => {
    const began_ms = performance.now();
    expect(() => jsonSchemaGrammar(schema, ['schema'])).toThrow(/more than 400000 steps/);
    expect(performance.now() - began_ms).toBeLessThan(5000);
  });

  it('ten thousand constants in oneOf, a list of types and long enums are read at once', () => {
    const began_ms = performance.now();
    const listed = jsonSchemaGrammar({ oneOf: count(8000, (at) => ({ const: at, title: 'a' })) }, ['schema']);
    expect(new Gbnf(listed).matches('7999')).toBe(true);
    jsonSchemaGrammar({ allOf: [{ enum: count(10_000, (at) => at) }, { enum: count(10_000, (at) => at) }] }, [
      'schema',
    ]);
    let nested: JsonValue = { type: 'string' };
    for (let depth = 0; depth < 40; depth++)
      nested = { type: ['object', 'object'], properties: { a: nested } };
    jsonSchemaGrammar(nested, ['schema']);
    expect(performance.now() - began_ms).toBeLessThan(5000);
  });

  it('what leads back to itself without an end of its own is refused, and names of all objects are no keywords', () => {
    const back = { $ref: '#/$defs/a' };
    const leading: JsonValue[] = [
      { allOf: [back, back] },
      {
        anyOf: [
          { ...back, type: 'object' },
          { ...back, minLength: 1 },
        ],
      },
    ];
    for (const a of leading)
      expect(() => jsonSchemaGrammar({ $defs: { a }, ...back, type: 'object' }, ['schema'])).toThrow(
        /nested more than 100 deep/,
      );
    expect(() => jsonSchemaGrammar({ constructor: 1 }, ['schema'])).toThrow(/`constructor` is not a keyword/);
    expect(() => jsonSchemaGrammar({ type: 'string', format: 'toString' }, ['schema'])).toThrow(
      /is not one of/,
    );
  });

  it('JSON mode accepts objects and nothing else', () => {
    const grammar = new Gbnf(jsonObjectGrammar());
    for (const text of ['{}', '{"a": [1, 2, {"b": "c\\n"}]}', '{ "x": -0.5e-7}'])
      expect(grammar.matches(text)).toBe(true);
    for (const text of ['[]', '"a"', '{a: 1}', '{"a": 1,}', '{"a"}', ' {}', '\n{}'])
      expect(grammar.matches(text)).toBe(false);
    for (let seed = 0; seed < 100; seed++)
      expect(typeof JSON.parse(grammar.generate(randomFrom(seed)))).toBe('object');
  });
});
