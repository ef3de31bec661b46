/** Requests that are permitted and made to take time: the thread that writes everybody's answers goes on meanwhile. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { tinyModel, WorkerHarness } from './support.ts';

const worker = new WorkerHarness();
/** Half of what a node agent waits before it kills a worker; on an idle machine none of these takes a tenth of it. */
const silence_ms_max = 5000;
/** Longest silence of the worker's reports, of which one is due every 50 ms. */
let silence_ms = 0;
let heard_ms = performance.now();

beforeAll(async () => {
  await worker.configure();
  await worker.load({
    name: 'qwen',
    model_path: await tinyModel(worker.folder, 'tiny-qwen3'),
    context_tokens: 4096,
  });
  worker.process.on('message', () => {
    const now_ms = performance.now();
    silence_ms = Math.max(silence_ms, now_ms - heard_ms);
    heard_ms = now_ms;
  });
});
afterAll(() => worker.close());

const messages = [{ role: 'user', content: 'count' }];
const repeat = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, at) => make(at));
const withSchema = (schema: unknown, strict = true) => ({
  model: 'qwen',
  messages,
  max_tokens: 2,
  response_format: { type: 'json_schema', json_schema: { name: 's', strict, schema } },
});
const withGrammar = (grammar: string) => ({ model: 'qwen', messages, max_tokens: 2, grammar });
const asked = (more: Record<string, unknown>) => ({ model: 'qwen', messages, max_tokens: 2, ...more });
const $defs = Object.fromEntries(
  repeat(41, (at) => {
    const next = { $ref: `#/$defs/a${at + 1}`, type: 'object' };
    return [`a${at}`, at === 40 ? { type: 'object' } : { type: 'object', properties: { l: next, r: next } }];
  }),
);
/** Combinations that are 2^40 only where something differs. */
const apart = Object.fromEntries(
  repeat(41, (at) => {
    const next = `#/$defs/a${at + 1}`;
    const alternatives = [
      { $ref: next, minLength: at },
      { $ref: next, maxLength: 100 + at },
    ];
    return [`a${at}`, at === 40 ? { type: 'string' } : { anyOf: alternatives }];
  }),
);

const hostile: [string, string | Record<string, unknown>, RegExp][] = [
  ['references with something beside them, 40 deep', withSchema({ $defs, $ref: '#/$defs/a0' }), /200/],
  ['alternatives of alternatives', withSchema({ $defs: apart, $ref: '#/$defs/a0' }), /400.*steps/],
  ['constants that are compared', withSchema({ oneOf: repeat(15_000, (at) => ({ const: at })) }), /400/],
  [
    'numbers of 300 digits',
    withSchema({ anyOf: repeat(4000, (at) => ({ type: 'integer', minimum: at, maximum: 1e300 })) }),
    /400.*steps/,
  ],
  ['a keyword without end', withSchema({ ['k'.repeat(250_000)]: 1 }), /400.*not a keyword/],
  ['a parameter without end', asked({ ['x'.repeat(4_000_000)]: 1 }), /400.*Unknown parameter/],
  [
    'one of a message',
    asked({ messages: [{ role: 'user', content: 'a', ['x'.repeat(4_000_000)]: 1 }] }),
    /^200/,
  ],
  [
    'members of messages that nobody knows',
    asked({ messages: repeat(5000, (at) => ({ role: 'user', content: '', [`m${at}`]: at })) }),
    /^(200|400.*context)/,
  ],
  [
    'keywords that nobody knows, where they are left out',
    withSchema(Object.fromEntries(repeat(15_000, (at) => [`k${at}`, at])), false),
    /^200/,
  ],
  [
    'patterns that cannot be kept, where they are left out',
    withSchema({ anyOf: repeat(5000, (at) => ({ type: 'string', pattern: `a{${at % 900}}(?=b)` })) }, false),
    /^(200|400)/,
  ],
  ['a model without end', { ...asked({}), model: 'm'.repeat(4_000_000) }, /404/],
  [
    'rules that refer to those before them',
    withGrammar(
      repeat(15_000, (at) =>
        at === 0 ? 'root ::= "a"' : `r${at} ::= ${at === 1 ? 'root' : `r${at - 1}`}`,
      ).join('\n'),
    ),
    /200/,
  ],
  ['a grammar without end', withGrammar(`root ::= ${'"a" '.repeat(100_000)}`), /400.*262144 characters/],
  ['brackets without end', withGrammar(`root ::= ${'('.repeat(100_000)}"a"`), /400.*nested/],
  [
    'objects without number',
    `{"model":"qwen","messages":[],"x":[${'{},'.repeat(2_700_000)}{}]}`,
    /413.*objects and lists/,
  ],
  [
    'names without number',
    `{"model":"qwen","messages":[],"x":{${repeat(600_000, (at) => `"${at.toString(36)}":1`).join(',')}}}`,
    /413.*names/,
  ],
  ['depth without end', `{"model":"qwen","messages":${'['.repeat(1_000_000)}`, /400.*nested/],
  ['32 MB of text', asked({ messages: [{ role: 'user', content: 'a'.repeat(32_000_000) }] }), /413/],
  ['8 MB of text', asked({ messages: [{ role: 'user', content: 'a b'.repeat(2_700_000) }] }), /400.*context/],
  [
    'messages without number',
    asked({ messages: repeat(20_000, () => messages[0]) }),
    /400.*at most 10000 messages/,
  ],
  [
    'messages of control text',
    asked({ messages: repeat(9000, () => ({ role: 'user', content: '<|im_start|>' })) }),
    /400.*context/,
  ],
  [
    'tools',
    asked({
      tools: repeat(1900, (at) => ({
        type: 'function',
        function: { name: `t${at}`, parameters: { type: 'object', properties: { a: { type: 'string' } } } },
      })),
    }),
    /400.*context/,
  ],
  ['long arguments', asked({ chat_template_kwargs: { x: repeat(90_000, () => [1]) } }), /200/],
  [
    'stops and biases',
    asked({
      stop: repeat(16, () => 'x'.repeat(1024)),
      logit_bias: Object.fromEntries(repeat(400, (at) => [at, 1])),
      n: 8,
    }),
    /200/,
  ],
];

const post = (body: string | Record<string, unknown>) => worker.post('/v1/chat/completions', body);

/** Longest silence of the worker while something is done, ms. */
async function silenceDuring(act: () => Promise<void>): Promise<number> {
  silence_ms = 0;
  heard_ms = performance.now();
  await act();
  return Math.max(silence_ms, performance.now() - heard_ms);
}

test.each(hostile)('%s: answered, and the worker reports all the time', async (_, body, expected) => {
  const silent_ms = await silenceDuring(async () => {
    const { status, text } = await post(body);
    expect(`${status} ${text}`).toMatch(expected);
  });
  expect(silent_ms).toBeLessThan(silence_ms_max);
});

test('all of them at once, many times: the worker reports all the time', async () => {
  const volley = [1, 2, 3].flatMap(() => hostile.filter(([what]) => !what.startsWith('rules')));
  const silent_ms = await silenceDuring(async () => {
    await Promise.all(volley.map(([, body]) => post(body)));
  });
  expect(silent_ms).toBeLessThan(silence_ms_max);
  expect((await post(asked({}))).status).toBe(200);
});
