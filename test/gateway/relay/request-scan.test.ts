/** Bodies are read as JSON.parse reads them, without making objects of them. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { depth_max } from '../../../gateway/relay/json-scan.ts';
import { promptKeysOf } from '../../../gateway/relay/prompt-text.ts';
import { bodyFor, parseRequest } from '../../../gateway/relay/request-body.ts';
import { RequestScan } from '../../../gateway/relay/request-scan.ts';
import { ScanQueue } from '../../../gateway/relay/scan-queue.ts';
import { promptKeys } from '../../../solver/routing/prompt-keys.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

function scanned(text: string | Buffer): RequestScan {
  return new RequestScan(Buffer.from(text as string)).finish();
}

/** Whether the scan takes a text, whole or in slices. */
function takes(bytes: Buffer, slice = Number.POSITIVE_INFINITY): boolean {
  const scan = new RequestScan(bytes);
  try {
    while (!scan.step(slice));
    return true;
  } catch (error) {
    if (error instanceof HpcserveError && error.code === 'E_REQUEST_JSON') return false;
    throw error;
  }
}

function parses(bytes: Buffer): boolean {
  try {
    JSON.parse(bytes.toString());
    return true;
  } catch {
    return false;
  }
}

/** JSON in all the ways that it may be spelled. */
const spelled = fc
  .tuple(fc.json({ stringUnit: 'binary' }), fc.constantFrom('', ' ', '\n\t ', '\r\n'))
  .map(([text, space]) => text.replaceAll(/[,:[\]{}]/g, (mark) => mark + space));
/** The same, and always good. */
const good = fc
  .tuple(fc.json({ stringUnit: 'binary' }), fc.constantFrom(undefined, ' ', '\t'))
  .map(([text, space]) => JSON.stringify(JSON.parse(text), undefined, space));
/** What stands in JSON, in no order. */
const soup = fc
  .array(
    fc.constantFrom(
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '"',
      '"a"',
      '"\\u0061"',
      '\\',
      '\\"',
      '\\u12',
      '\u0000',
      'true',
      'nul',
      'null',
      '0',
      '-',
      '01',
      '-0',
      '1.5',
      '1.',
      '.5',
      '1e',
      '1e+5',
      '1E-2',
      ' ',
      '\n',
      '\u00a0',
      'é',
      '\ud83d',
      '"model":"m"',
    ),
    { maxLength: 14 },
  )
  .map((parts) => parts.join(''));

describe('a scan', () => {
  it('takes what JSON.parse takes, and refuses what it refuses, whole and in slices', () => {
    fc.assert(
      fc.property(fc.oneof(spelled, soup), fc.integer({ min: 1, max: 9 }), (text, slice) => {
        const bytes = Buffer.from(text);
        expect([takes(bytes), takes(bytes, slice)]).toEqual([parses(bytes), parses(bytes)]);
      }),
      { numRuns: 3000 },
    );
  });

  it('does so where bytes of good JSON are lost, doubled or others', () => {
    const mutation = fc.record({
      at: fc.nat(400),
      kind: fc.constantFrom('drop', 'double', 'set', 'cut'),
      byte: fc.oneof(fc.nat(255), fc.constantFrom(34, 92, 44, 58, 123, 125, 91, 93, 48)),
    });
    fc.assert(
      fc.property(spelled, fc.array(mutation, { minLength: 1, maxLength: 3 }), (text, mutations) => {
        let bytes = Buffer.from(`{"model":"m","x":${text},"stream":true}`);
        for (const { at, kind, byte } of mutations) {
          const place = at % bytes.length;
          const [before, after] = [bytes.subarray(0, place), bytes.subarray(place + 1)];
          if (kind === 'cut') bytes = Buffer.from(before);
          else if (kind === 'drop') bytes = Buffer.concat([before, after]);
          else if (kind === 'set') bytes = Buffer.concat([before, Buffer.from([byte]), after]);
          else bytes = Buffer.concat([before, bytes.subarray(place, place + 1), bytes.subarray(place)]);
          if (bytes.length === 0) break;
        }
        expect([takes(bytes), takes(bytes, 3)]).toEqual([parses(bytes), parses(bytes)]);
      }),
      { numRuns: 3000 },
    );
  });

  it('finds members by their meaning, the last of equal ones, and nothing that is deeper', () => {
    const name = fc.constantFrom('model', 'n', 'max_tokens', 'messages', 'stream_options', 'x', '', 'modelé');
    const escaping = (text: string): string =>
      text.replaceAll(/./gu, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
    fc.assert(
      fc.property(fc.array(fc.tuple(name, good, fc.boolean()), { maxLength: 8 }), (list) => {
        const text = `{${list.map(([key, value, escaped]) => `"${escaped ? escaping(key) : key}": ${value}`).join()}}`;
        const scan = scanned(text);
        const json = JSON.parse(text) as Record<string, unknown>;
        for (const key of ['model', 'n', 'max_tokens', 'messages', 'stream_options'] as const) {
          const span = scan.members.get(key);
          expect(span !== undefined).toBe(Object.hasOwn(json, key));
          if (span) expect(JSON.parse(scan.bytes.toString('utf8', span.start, span.end))).toEqual(json[key]);
        }
        expect(scan.close).toBe(scan.bytes.length - 1);
      }),
      { numRuns: 1000 },
    );
  });

  it('finds the texts of prompts that replicas are chosen by', () => {
    const text = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 40 }),
      fc.nat(3000).map((count) => 'wörd "q" \n😀 '.repeat(count)),
    );
    const content = fc.oneof(
      text,
      fc.array(
        fc.oneof(
          text.map((one) => ({ type: 'text', text: one })),
          fc.constant({ type: 'x' }),
        ),
        { maxLength: 3 },
      ),
    );
    const message = fc.record({ role: fc.constantFrom('system', 'user', 'assistant'), content });
    const request = fc.oneof(
      fc.record({ messages: fc.array(message, { maxLength: 6 }) }),
      fc.record({ prompt: fc.oneof(text, fc.array(text, { maxLength: 3 }), fc.constant([1, 2])) }),
      fc.record({ instructions: text, input: fc.oneof(text, fc.array(message, { maxLength: 4 })) }),
    );
    fc.assert(
      fc.property(request, fc.constantFrom(undefined, 1), (body, space) => {
        const scan = scanned(
          JSON.stringify({ model: 'm', ...body, tools: [{ content: 'no' }] }, undefined, space),
        );
        expect(promptKeysOf(scan)).toEqual(keysOf(body));
      }),
      { numRuns: 300 },
    );
  });

  it('looks at the ends of a text that is too long to be decoded', () => {
    const long = (middle: string, end: string): RequestScan =>
      scanned(
        JSON.stringify({
          messages: [{ role: 'user', content: `${'é\\ '.repeat(20_000)}${middle.repeat(300_000)}${end}` }],
        }),
      );
    const keys = promptKeysOf(long('a', 'end'.repeat(400)))!;
    expect(promptKeysOf(long('b', 'end'.repeat(400)))).toEqual(keys);
    const other = promptKeysOf(long('a', 'fin'.repeat(400)))!;
    expect([other.prefix === keys.prefix, other.conversation === keys.conversation]).toEqual([true, false]);
  });

  it('says where a body is wrong', () => {
    for (const [text, where] of [
      ['{"model": "m",\n "x": tru }', 'line 2, column 7 (byte 22): a value must come, and there is t'],
      ['{"model": "m"', 'byte 14): a comma or the end of what is open must come, and it ends there'],
      ['{"a":"\n"}', 'a control character in a string'],
      ['{"a":01}', 'a comma or the end'],
      ['{"a":1}}', 'nothing more must come'],
      [`{"a":${'1'.repeat(2000)}}`, 'a number of more than'],
    ] as const)
      expect(() => scanned(text)).toThrow(
        expect.objectContaining({ because: [expect.stringContaining(where)] }),
      );
  });

  it('refuses what is nested too deeply, wherever it is', () => {
    const nested = (depth: number): string => `${'['.repeat(depth)}${']'.repeat(depth)}`;
    expect(scanned(`{"model":"m","x":${nested(depth_max - 1)}}`).isObject).toBe(true);
    for (const depth of [depth_max, 100_000, 1_000_000])
      for (const name of ['x', 'stream_options', 'messages'])
        expect(() => scanned(`{"model":"m","stream":true,"${name}":${nested(depth)}}`)).toThrow(
          expect.objectContaining({
            code: 'E_REQUEST_JSON',
            because: [expect.stringContaining('nested deeper')],
          }),
        );
  });
});

/** As they are of a parsed body. */
function keysOf(body: Record<string, unknown>): ReturnType<typeof promptKeys> {
  const parts: string[] = [];
  const add = (text: unknown): void => void (typeof text === 'string' && text !== '' && parts.push(text));
  let opening = 0;
  const addMessages = (messages: { role: string; content: unknown }[]): void => {
    const before = parts.length;
    for (const { role, content } of messages) {
      for (const part of Array.isArray(content)
        ? (content as { text?: unknown }[]).map(({ text }) => text)
        : [content])
        add(part);
      if (opening === 0 && role === 'user' && parts.length > before) opening = parts.length;
    }
    if (opening === 0) opening = parts.length;
  };
  const { messages, prompt, input, instructions } = body;
  if (messages) addMessages(messages as never);
  else if (prompt !== undefined) {
    add(Array.isArray(prompt) ? prompt[0] : prompt);
    opening = 1;
  } else {
    add(instructions);
    if (Array.isArray(input)) addMessages(input);
    else {
      add(input);
      opening = parts.length;
    }
  }
  return promptKeys(parts, opening);
}

describe('what is asked for', () => {
  it('is read by its meaning', () => {
    const parsed = (body: object): ReturnType<typeof parseRequest> =>
      parseRequest(scanned(JSON.stringify({ model: 'm', ...body })), 'completions');
    expect(parsed({ max_tokens: 5, n: 3 })).toMatchObject({ max_tokens: 5, choices: 3 });
    expect(parsed({ max_tokens: 5, max_completion_tokens: 9, prompt: ['a', 'b'] })).toMatchObject({
      max_tokens: 9,
      choices: 2,
    });
    expect(parsed({ prompt: [1, 2, 3] })).toMatchObject({ max_tokens: undefined, choices: 1 });
    expect(parsed({ prompt: [[1], [2, 3]], n: 2 })).toMatchObject({ choices: 4 });
  });

  it.each(['n', 'best_of'])('has so many answers that can be counted: %s', (member) => {
    const parsed = (value: string): ReturnType<typeof parseRequest> =>
      parseRequest(scanned(`{"model":"m","${member}":${value}}`), 'completions');
    for (const value of ['1e300', '1e999', '1025', '0', '-1', '1.5', '"2"', 'true', '[2]', '{}'])
      expect(() => parsed(value), value).toThrow(`\`${member}\` must be a whole number from 1 to 1024`);
    for (const value of ['null', '1']) expect(parsed(value).choices).toBe(1);
    for (const value of ['1024', '1.024e3']) expect(parsed(value).choices).toBe(1024);
  });

  it('is asked of a replica without a copy of the rest', () => {
    const scan = scanned('{"model":"m","stream":true}');
    const pieces = bodyFor(parseRequest(scan, 'completions'), 'vllm');
    expect(Buffer.concat([...pieces]).toString()).toBe(
      '{"model":"m","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},' +
        '"return_token_ids":true}',
    );
    expect(pieces[0]!.buffer).toBe(scan.bytes.buffer);
  });
});

describe('large bodies', () => {
  it('are read in slices, in turn with each other, and others have their turns between', async () => {
    const queue = new ScanQueue();
    const body = Buffer.from(`{"model":"m","x":[${'{},'.repeat(2_000_000)}{}]}`);
    let turns = 0;
    let running = true;
    const count = (): void => {
      turns++;
      if (running) setImmediate(count);
    };
    setImmediate(count);
    const ends: number[] = [];
    const read = (bytes: Buffer): Promise<void> =>
      new Promise((resolve) =>
        queue.read(new RequestScan(bytes), () => {
          ends.push(turns);
          resolve();
        }),
      );
    const large = [read(body), read(body)];
    const smaller = read(body.subarray(0, 200_000));
    await smaller;
    // Who came last and is small is not behind all of the large ones.
    expect(ends).toHaveLength(1);
    await Promise.all(large);
    running = false;
    expect(turns).toBeGreaterThan(10);
  });
});
