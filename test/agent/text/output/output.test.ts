import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { grammarOf } from '../../../../agent/text/grammar/gbnf.ts';
import { validUnder } from '../../../../agent/text/grammar/json-grammar.ts';
import { Detokenizer } from '../../../../agent/text/output/detokenizer.ts';
import { OutputParser } from '../../../../agent/text/output/output-parser.ts';
import { promptOpensReasoning, ReasoningSplitter } from '../../../../agent/text/output/reasoning.ts';
import { longestOverlap, StopStrings } from '../../../../agent/text/output/stop-strings.ts';
import { CallParser } from '../../../../agent/text/tools/call-parser.ts';
import { type ToolFormat, toolCalls, toolFormatOf } from '../../../../agent/text/tools/tool-format.ts';
import type { ToolFunction } from '../../../../agent/text/tools/tool-function.ts';
import { Gbnf } from '../gbnf.ts';

/** Cuts a text at places that a random list of lengths names. */
function cut(text: string, lengths: readonly number[]): string[] {
  const pieces: string[] = [];
  let at = 0;
  for (let index = 0; at < text.length; index++) {
    const length = lengths[index % lengths.length]!;
    pieces.push(text.slice(at, at + length));
    at += length;
  }
  return pieces;
}

const lengthsArbitrary = fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1, maxLength: 8 });

describe('detokenizer', () => {
  it('writes every text again, however its bytes are cut into tokens', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 30 }), lengthsArbitrary, (text, lengths) => {
        const bytes = Buffer.from(text);
        const tokens: Uint8Array[] = [];
        for (let at = 0, index = 0; at < bytes.length; index++) {
          const length = lengths[index % lengths.length]!;
          tokens.push(bytes.subarray(at, at + length));
          at += length;
        }
        const detokenizer = new Detokenizer({ piece: (token) => tokens[token]! }, { special: false });
        let out = '';
        for (let token = 0; token < tokens.length; token++) {
          const piece = detokenizer.push(token);
          expect(text.startsWith(out + piece)).toBe(true);
          out += piece;
        }
        expect(out + detokenizer.end()).toBe(text);
      }),
    );
  });

  it('holds half a character, and replaces what never becomes one', () => {
    const tokens = [
      Buffer.from([0xf0, 0x9f]),
      Buffer.from([0x98, 0x80]),
      Buffer.from([0xff]),
      Buffer.from([0xc3]),
    ];
    const detokenizer = new Detokenizer({ piece: (token) => tokens[token]! }, { special: false });
    expect([0, 1, 2, 3].map((token) => detokenizer.push(token))).toEqual(['', '😀', '\ufffd', '']);
    expect(detokenizer.end()).toBe('\ufffd');
  });

  it('shows control tokens only where asked, or where a tool format needs them', () => {
    const source = { piece: (_: number, special = false) => Buffer.from(special ? '<|x|>' : '') };
    expect(new Detokenizer(source, { special: false }).push(1)).toBe('');
    expect(new Detokenizer(source, { special: true }).push(1)).toBe('<|x|>');
    expect(new Detokenizer(source, { special: false, preserved: new Set([1]) }).push(1)).toBe('<|x|>');
  });
});

describe('stop strings', () => {
  const alphabet = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 4 });

  it('cut where a search in the whole text would, and send nothing that would have to be taken back', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 40 }),
        fc.array(alphabet, { minLength: 1, maxLength: 4 }),
        lengthsArbitrary,
        (text, stops, lengths) => {
          // The reference: letter by letter, the first moment at which the text ends with a stop string.
          let expected: string | undefined;
          for (let end = 1; end <= text.length && expected === undefined; end++) {
            const longest = stops
              .filter((stop) => text.slice(0, end).endsWith(stop))
              .sort((a, b) => b.length - a.length)[0];
            if (longest) expected = text.slice(0, end - longest.length);
          }
          const matcher = new StopStrings(stops);
          let out = '';
          let stopped = false;
          for (const piece of cut(text, lengths)) {
            const result = matcher.push(piece);
            out += result.text;
            expect((expected ?? text).startsWith(out)).toBe(true);
            if (result.stopped !== undefined) {
              stopped = true;
              break;
            }
          }
          if (!stopped) out += matcher.end();
          expect(stopped).toBe(expected !== undefined);
          expect(out).toBe(expected ?? text);
        },
      ),
      { numRuns: 1000 },
    );
  });

  it('withholds no more than it must', () => {
    expect(longestOverlap('xxaba', ['abac', 'zz'])).toBe(3);
    expect(longestOverlap('xxabac', ['abac'])).toBe(0);
    const matcher = new StopStrings(['END']);
    expect(matcher.push('text E').text).toBe('text ');
    expect(matcher.push('asy').text).toBe('Easy');
    expect(new StopStrings(['END'], true).push('xENDy')).toEqual({ text: 'xEND', stopped: 'END' });
  });
});

describe('reasoning', () => {
  const split = (opened: boolean, pieces: readonly string[]) => {
    const splitter = new ReasoningSplitter(opened);
    const out = { reasoning: '', content: '' };
    for (const part of [...pieces.map((piece) => splitter.push(piece)), splitter.end()]) {
      out.reasoning += part.reasoning;
      out.content += part.content;
    }
    return out;
  };

  it.each([
    [false, '<think>\nhm\n</think>\n\nYes', 'hm', 'Yes'],
    [true, 'hm\n</think>\n\nYes', 'hm', 'Yes'],
    [false, 'Yes <think>', '', 'Yes <think>'],
    [false, '  Yes', '', '  Yes'],
    [true, 'cut off in thou', 'cut off in thou', ''],
    [false, '<thi', '', '<thi'],
    [true, '\n\n</think>\n\nYes', '', 'Yes'],
  ])('opened %s, %j, in pieces of any size', (opened, text, reasoning, content) => {
    fc.assert(
      fc.property(lengthsArbitrary, (lengths) => {
        expect(split(opened, cut(text, lengths))).toEqual({ reasoning, content });
      }),
      { numRuns: 50 },
    );
  });

  it('knows from the prompt whether reasoning is open', () => {
    expect(promptOpensReasoning('<|im_start|>assistant\n<think>\n')).toBe(true);
    expect(promptOpensReasoning('<|im_start|>assistant\n<think>\n\n</think>\n\n')).toBe(false);
  });
});

const hermes = toolFormatOf('{{ tools }} <tool_call>')!;
const coder = toolFormatOf('{{ tools }} <tool_call> <function=name> <parameter=key>')!;
const llama3 = toolFormatOf('{{ tools }} "parameters"')!;
const mistral = toolFormatOf('{{ tools }} [TOOL_CALLS]')!;
const marked = toolFormatOf('{{ tools }} [TOOL_CALLS] [ARGS]')!;
const markedWithIds = toolFormatOf('{{ tools }} [TOOL_CALLS] [CALL_ID] [ARGS]')!;

/** Of the arguments of `add`. */
const schema = {
  type: 'object',
  properties: {
    a: { type: 'integer' },
    b: { type: 'string' },
    c: { type: 'boolean' },
    d: { anyOf: [{ type: 'string' }, { type: 'null' }] },
    e: { $ref: '#/$defs/word' },
  },
  $defs: { word: { enum: ['7', 'eight'] } },
};

/** A call of `add` as Qwen3-Coder writes it. */
function written(values: Record<string, string>): string {
  const parameters = Object.entries(values).map(
    ([key, value]) => `<parameter=${key}>\n${value}\n</parameter>\n`,
  );
  return `<tool_call>\n<function=add>\n${parameters.join('')}</function>\n</tool_call>`;
}

/** The whole of what a parser says, deltas joined. */
function parse(format: ToolFormat, pieces: readonly string[]) {
  const parser = new CallParser(format, ['add', 'look'], new Map([['add', schema]]));
  let content = '';
  const calls: { name: string; arguments: string }[] = [];
  for (const part of [...pieces.map((piece) => parser.push(piece)), parser.end()]) {
    content += part.content;
    for (const delta of part.tool_calls) {
      if (delta.name !== undefined) calls[delta.index] = { name: delta.name, arguments: '' };
      calls[delta.index]!.arguments += delta.arguments;
    }
  }
  return { content, calls };
}

describe('tool calls', () => {
  const add = { name: 'add', arguments: '{"a": 1, "b": "}\\""}' };
  it.each<[string, ToolFormat, string, string, { name: string; arguments: string }[]]>([
    ['one', hermes, `<tool_call>\n{"name": "add", "arguments": ${add.arguments}}\n</tool_call>`, '', [add]],
    [
      'text before and after',
      hermes,
      `Let me see.\n\n<tool_call>{"name": "add", "arguments": ${add.arguments}}</tool_call>Done`,
      'Let me see.Done',
      [add],
    ],
    [
      'two',
      hermes,
      `<tool_call>\n{"name": "add", "arguments": ${add.arguments}}\n</tool_call>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>`,
      '',
      [add, { name: 'look', arguments: '{}' }],
    ],
    [
      'arguments first',
      hermes,
      `<tool_call>{"arguments": ${add.arguments}, "name": "add"}</tool_call>`,
      '',
      [add],
    ],
    [
      'arguments as a string',
      hermes,
      `<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>`,
      '',
      [{ name: 'add', arguments: '{"a": 1}' }],
    ],
    [
      'no arguments',
      hermes,
      '<tool_call>{"name": "look"}</tool_call>',
      '',
      [{ name: 'look', arguments: '{}' }],
    ],
    ['not a call', hermes, 'a <tool_call> tag, {x}', 'a <tool_call> tag, {x}', []],
    ['broken JSON', hermes, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []],
    ['cut off before the name', hermes, '<tool_call>\n{"na', '<tool_call>\n{"na', []],
    [
      'cut off in the arguments',
      hermes,
      '<tool_call>\n{"name": "add", "arguments": {"a"',
      '',
      [{ name: 'add', arguments: '{"a"' }],
    ],
    ['nearly a mark', hermes, 'x <tool_c', 'x <tool_c', []],
    [
      'values by their types',
      coder,
      written({ a: '1', b: '1', c: 'True', d: '1', e: '7' }),
      '',
      [{ name: 'add', arguments: '{"a": 1, "b": "1", "c": true, "d": "1", "e": "7"}' }],
    ],
    [
      'what is no value of its type is a string',
      coder,
      written({ a: 'one', c: 'maybe', d: 'None' }),
      '',
      [{ name: 'add', arguments: '{"a": "one", "c": "maybe", "d": null}' }],
    ],
    [
      'parameters of which nothing is said',
      coder,
      written({ x: '{"y": [1]}', z: 'as it is' }),
      '',
      [{ name: 'add', arguments: '{"x": {"y": [1]}, "z": "as it is"}' }],
    ],
    [
      'a text of several lines',
      coder,
      written({ b: '\n  if (a < b) "</param" \\n\n' }),
      '',
      [{ name: 'add', arguments: `{"b": ${JSON.stringify('\n  if (a < b) "</param" \\n\n')}}` }],
    ],
    [
      'values on the lines of their marks, and none',
      coder,
      '<tool_call><function=add><parameter=b>x</parameter><parameter=e>\n</parameter></function></tool_call>',
      '',
      [{ name: 'add', arguments: '{"b": "x", "e": ""}' }],
    ],
    [
      'two, and text before and after',
      coder,
      `Let me see.\n\n${written({ a: '1' })}\n<tool_call>\n<function=look>\n</function>\n</tool_call>Done`,
      'Let me see.Done',
      [
        { name: 'add', arguments: '{"a": 1}' },
        { name: 'look', arguments: '{}' },
      ],
    ],
    ['a mark without a call', coder, 'a <tool_call> <fun> tag', 'a <tool_call> <fun> tag', []],
    ['JSON where a name belongs', coder, '<tool_call>\n{"name": "add"}', '<tool_call>\n{"name": "add"}', []],
    ['a call without a mark', coder, '<function=add>\n</function>', '<function=add>\n</function>', []],
    ['a name that is none', coder, '<tool_call><function=a b>\n', '<tool_call><function=a b>\n', []],
    ['cut off before its name', coder, '<tool_call>\n<function=ad', '<tool_call>\n<function=ad', []],
    [
      'cut off in a value',
      coder,
      '<tool_call>\n<function=add>\n<parameter=b>\nlo',
      '',
      [{ name: 'add', arguments: '{"b": "lo' }],
    ],
    [
      'text between its parameters',
      coder,
      '<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\nand',
      'nd',
      [{ name: 'add', arguments: '{"a": 1' }],
    ],
    ['bare', llama3, `{"name": "add", "parameters": ${add.arguments}}`, '', [add]],
    ['bare after a tag', llama3, `<|python_tag|>{"name": "add", "parameters": ${add.arguments}}`, '', [add]],
    ['JSON that is no call', llama3, '{"answer": {"name": 1}}', '{"answer": {"name": 1}}', []],
    [
      'bare call of an unknown tool',
      llama3,
      '{"name": "Alice", "parameters": {"x": 1}} !',
      '{"name": "Alice", "parameters": {"x": 1}} !',
      [],
    ],
    ['plain text', llama3, 'Hello {"name": "add"}', 'Hello {"name": "add"}', []],
    [
      'list',
      mistral,
      `[TOOL_CALLS][{"name": "add", "arguments": ${add.arguments}}, {"name": "look", "arguments": {}}]`,
      '',
      [add, { name: 'look', arguments: '{}' }],
    ],
    [
      'name and arguments',
      marked,
      '[TOOL_CALLS]add[ARGS]{"a":1}',
      '',
      [{ name: 'add', arguments: '{"a":1}' }],
    ],
    [
      'a mark before each name, and text before and after',
      marked,
      `Wait. [TOOL_CALLS]add[ARGS]${add.arguments}[TOOL_CALLS]look[ARGS] {}Done {x}`,
      'Wait.Done {x}',
      [add, { name: 'look', arguments: '{}' }],
    ],
    [
      "an id of the model's own",
      markedWithIds,
      `[TOOL_CALLS]add[CALL_ID]9bA_3-xYz[ARGS]${add.arguments}`,
      '',
      [add],
    ],
    ['a mark before a text', marked, '[TOOL_CALLS] is a mark', '[TOOL_CALLS] is a mark', []],
    ['a mark without a name', marked, '[TOOL_CALLS][ARGS]{}', '[TOOL_CALLS][ARGS]{}', []],
    ['a name cut off', marked, '[TOOL_CALLS]add[AR', '[TOOL_CALLS]add[AR', []],
    [
      'arguments cut off',
      marked,
      '[TOOL_CALLS]add[ARGS]{"a": "}',
      '',
      [{ name: 'add', arguments: '{"a": "}' }],
    ],
  ])('%s', (_, format, text, content, calls) => {
    expect(parse(format, [text])).toEqual({ content, calls });
    fc.assert(
      fc.property(lengthsArbitrary, (lengths) => {
        expect(parse(format, cut(text, lengths))).toEqual({ content, calls });
      }),
      { numRuns: 60 },
    );
  });

  it('arguments are passed on before they are complete', () => {
    const parser = new CallParser(hermes, []);
    expect(
      parser
        .push('<tool_call>{"name": "add", "arguments": {"a": "lo')
        .tool_calls.map((delta) => delta.arguments)
        .join(''),
    ).toBe('{"a": "lo');
    expect(parser.push('ng"').tool_calls).toEqual([{ index: 0, arguments: 'ng"' }]);
  });

  it('a text is passed on before it is complete, but for what may end it', () => {
    const parser = new CallParser(coder, ['add'], new Map([['add', schema]]));
    const said = (piece: string): string =>
      parser
        .push(piece)
        .tool_calls.map((delta) => delta.arguments)
        .join('');
    expect(said('<tool_call>\n<function=add>\n<parameter=b>\n')).toBe('{"b": "');
    expect(said('lo"ng\n</par')).toBe('lo\\"ng');
    expect(said('t')).toBe('\\n</part');
    expect(said('\n</parameter>\n<parameter=a>\n12')).toBe('", "a": ');
    expect(said('\n</parameter>')).toBe('12');
    expect(said('\n</function>')).toBe('}');
  });

  it.each([hermes, coder, llama3, mistral, marked])(
    'grammar of $name has calls beside a text of a form',
    (format) => {
      const path = ['tools', '0'];
      const none = { type: 'object', properties: {}, additionalProperties: false };
      const call = toolCalls(format, [{ name: 'look', path, parameters: none, strict: true }], false, []);
      const text = validUnder({ enum: [{ a: 1 }] }, ['schema']);
      const grammar = new Gbnf(grammarOf([text, call]));
      const made = new Set<string>();
      for (let seed = 1; seed < 60; seed++) {
        let state = Math.imul(seed, 0x9e3779b1);
        const said = grammar.generate(() => {
          state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
          return state / 2 ** 32;
        });
        const { content, calls } = parse(format, [said]);
        made.add(calls.length > 0 ? `call of ${calls[0]!.name}` : content);
      }
      expect([...made].sort()).toEqual(['call of look', '{"a":1}']);
    },
  );

  it.each([hermes, coder, llama3, mistral, marked, markedWithIds])(
    'grammar of $name makes only texts that parse as valid calls',
    (format) => {
      const tools: ToolFunction[] = [
        {
          name: 'add',
          path: ['tools', '0'],
          parameters: { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] },
          strict: true,
        },
        { name: 'look', path: ['tools', '1'], parameters: { type: 'object' }, strict: false },
      ];
      const grammar = new Gbnf(grammarOf([toolCalls(format, tools, true, [])]));
      for (let seed = 1; seed < 60; seed++) {
        let state = seed;
        const text = grammar.generate(() => {
          state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
          return state / 2 ** 32;
        });
        const { content, calls } = parse(format, [text]);
        expect(content).toBe('');
        expect(calls.length).toBeGreaterThan(0);
        for (const call of calls) {
          const value = JSON.parse(call.arguments);
          if (call.name === 'add') expect(Number.isInteger(value.a)).toBe(true);
          else expect(call.name).toBe('look');
        }
      }
    },
  );

  it('values without quotes are bound to their schemas, and a text never ends early', () => {
    const tool = { name: 'add', path: ['tools', '0'], strict: true };
    const parameters = { ...schema, required: ['b', 'e'], additionalProperties: false };
    const grammar = new Gbnf(grammarOf([toolCalls(coder, [{ ...tool, parameters }], false, [])]));
    const texts = new Set<string>();
    for (let seed = 1; seed < 200; seed++) {
      let state = Math.imul(seed, 0x9e3779b1);
      const said = grammar.generate(() => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return state / 2 ** 32;
      });
      const { content, calls } = parse(coder, [said]);
      expect([content, calls.length]).toEqual(['', 1]);
      const { a = 0, b, c = true, d = null, e } = JSON.parse(calls[0]!.arguments);
      expect(Number.isInteger(a), said).toBe(true);
      expect([typeof b, typeof c], said).toEqual(['string', 'boolean']);
      expect(d === null || typeof d === 'string', said).toBe(true);
      expect(['7', 'eight']).toContain(e);
      texts.add(b);
    }
    expect(texts.size).toBeGreaterThan(20);
    for (const text of ['a < b', '</', '</parameter', '<</parameter', '7\n', '</paramete</parameter'])
      expect(grammar.matches(written({ b: text, e: '7' })), text).toBe(true);
    for (const wrong of [{ b: 'x' }, { b: 'x', e: 'nine' }, { a: 'one', b: 'x', e: '7' }])
      expect(grammar.matches(written(wrong as Record<string, string>)), JSON.stringify(wrong)).toBe(false);
  });

  it('what cannot bind a text without quotes is refused where it is strict, else told', () => {
    const parameters = { type: 'object', properties: { b: { type: 'string', pattern: '^a' } } };
    const calls = (strict: boolean, warnings: string[]): string =>
      grammarOf([
        toolCalls(coder, [{ name: 'add', path: ['tools', '0'], parameters, strict }], false, warnings),
      ]);
    expect(() => calls(true, [])).toThrow(expect.objectContaining({ code: 'E_REQUEST_SCHEMA' }));
    const warnings: string[] = [];
    calls(false, warnings);
    expect(warnings).toEqual([expect.stringContaining('properties.b.pattern')]);
  });

  it('reasoning and calls together', () => {
    const parser = new OutputParser({
      reasoning: { opened: false },
      tools: { format: hermes, names: ['add'] },
    });
    const delta = parser.push(
      '<think>a <tool_call> is needed</think>\n<tool_call>{"name": "add", "arguments": {}}</tool_call>',
    );
    const end = parser.end();
    expect(delta.reasoning + end.reasoning).toBe('a <tool_call> is needed');
    expect(delta.content + end.content).toBe('');
    expect(parser.tool_calls).toBe(1);
  });

  it('templates without tools have no format', () => {
    expect(toolFormatOf('{{ messages }} <tool_call>')).toBeUndefined();
  });

  it('a form that nothing reads is none', () => {
    const invoked = '{{ tools }} <minimax:tool_call>\n<invoke name="add">\n</invoke>\n</minimax:tool_call>';
    expect(toolFormatOf(invoked)).toBeUndefined();
  });

  it('what is a control token of a call is written out', () => {
    expect([marked.open, ...marked.marks!]).toEqual(['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]']);
  });
});
