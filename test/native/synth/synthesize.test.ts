import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Template } from '@huggingface/jinja';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { presetShape, synthPresets } from '../../../native/synth/presets.ts';
import { type SynthQuantization, synthQuantizations } from '../../../native/synth/quantization.ts';
import type { SynthShape } from '../../../native/synth/shape.ts';
import { planFile, synthesize } from '../../../native/synth/synthesize.ts';
import { llamaChatTemplate, qwenChatTemplate } from '../../../native/synth/tokenizer/chat-templates.ts';
import { Vocabulary } from '../../../native/vocabulary.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { summarizeGgufFile } from '../formats/support.ts';
import { decodeGreedily } from './reference.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-synth-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function make(
  preset: string,
  quantization: SynthQuantization,
  more: Partial<SynthShape> = {},
  seed = 1,
): Promise<string> {
  const path = join(folder, `${preset}-${quantization}-${seed}.gguf`);
  await synthesize({ path, shape: { ...presetShape(preset), ...more }, quantization, seed });
  return path;
}

const digest = (path: string): string => createHash('sha256').update(readFileSync(path)).digest('hex');

const tiny = Object.keys(synthPresets).filter((name) => name.startsWith('tiny-'));

describe('files', () => {
  test('the same seed gives the same bytes, on every machine and in every version', async () => {
    const path = await make('tiny-llama', 'Q8_0', { n_vocab: 300, n_layer: 1 }, 42);
    // A change here changes every synthetic model that people have: it needs a line in the release notes.
    expect(digest(path)).toBe('340eabec0dfd6d15a93432670885e090b31705eba624bae04fc6b5b888f389c0');
  });

  test('another seed gives other weights; nothing unfinished stays', async () => {
    const one = await make('tiny-qwen2', 'F16', {}, 1);
    const two = await make('tiny-qwen2', 'F16', {}, 2);
    expect(digest(one)).not.toBe(digest(two));
    expect(readdirSync(folder).filter((name) => name.includes('partial'))).toEqual([]);
  });

  test('the true shape of Llama 3.2 1B has its parameters and about the size of the published files', () => {
    const shape = presetShape('llama-3.2-1b');
    // Published: 1,235,814,400 parameters; the 32 rotary factors are counted as a tensor in GGUF files.
    const sizes = { BF16: 2_479_595_360, Q4_0: 773_025_920, Q8_0: 1_321_083_008 };
    for (const [quantization, published] of Object.entries(sizes)) {
      const bytes = planFile(shape, quantization as SynthQuantization, 0).layout.file_bytes;
      expect(Math.abs(bytes / published - 1)).toBeLessThan(0.01);
    }
  });

  test.each(tiny)('%s is a whole model that the native engine takes', async (preset) => {
    const path = await make(preset, 'Q4_K_M');
    const summary = summarizeGgufFile(path);
    expect(summary.supported_by_native).toBe(true);
    expect(summary.has_chat_template).toBe(true);
    expect(Object.keys(summary.tensor_types).sort()).toEqual(['F32', 'Q4_K', 'Q6_K']);
    expect(summary.quantization).toBe('Q4_K_M');
    const shape = presetShape(preset);
    expect(summary).toMatchObject({
      n_layer: shape.n_layer,
      n_vocab: shape.n_vocab,
      head_dim: shape.head_dim,
    });
    expect(summary.n_params_active < summary.n_params).toBe(shape.experts !== undefined);
  });

  test('rows that are no whole blocks fall back to a type that fits', async () => {
    const path = await make('tiny-qwen3', 'Q4_K', { n_embd: 96, n_ff: 80 });
    const types = new Map(readGguf(path).tensors.map((tensor) => [tensor.name, tensor.type]));
    expect(types.get('blk.0.ffn_up.weight')).toBe('Q8_0');
    expect(types.get('blk.0.ffn_down.weight')).toBe('F16');
    expect(decodeGreedily(path, 'Hello', 2).tokens).toHaveLength(2);
  });

  test.each([
    ['a head count that does not divide', { n_head: 5 }, 'multiple of n_head_kv'],
    [
      'experts where there are none',
      { architecture: 'qwen2', experts: { count: 4, used_per_token: 2, n_ff: 512 } },
      'has no experts',
    ],
    [
      'more experts used than there are',
      { experts: { count: 4, used_per_token: 5, n_ff: 512 } },
      'between 1 and experts.count',
    ],
    ['a vocabulary without room', { n_vocab: 260 }, '256 bytes and 11 special tokens need 267'],
    ['a fraction of a layer', { n_layer: 1.5 }, 'n_layer must be a positive integer'],
  ] as [string, Partial<SynthShape>, string][])('%s is refused', async (_, more, words) => {
    const error = await make('tiny-llama', 'F16', more).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(HpcserveError);
    expect((error as HpcserveError).because.join()).toContain(words);
  });

  test('an unknown preset gets the nearest', () => {
    expect(() => presetShape('tiny-lama')).toThrow(HpcserveError);
    expect(() => presetShape('constructor')).toThrow(HpcserveError);
  });
});

describe('libllama computes with them', () => {
  const common: readonly SynthQuantization[] = ['F16', 'Q4_0', 'Q4_K_M'];
  const combinations = tiny.flatMap((preset) =>
    (preset === 'tiny-llama' ? synthQuantizations : common).map((name) => [preset, name] as const),
  );
  test.each(combinations)('%s %s gives varied text with a sane spread', async (preset, quantization) => {
    const path = await make(preset, quantization, {}, 7);
    const run = decodeGreedily(path, 'The scheduler looks at every job,', 24);
    expect(new Set(run.tokens).size).toBeGreaterThan(14);
    expect(run.logit_deviation).toBeGreaterThan(2);
    expect(run.logit_deviation).toBeLessThan(4);
    const { architecture, n_vocab } = presetShape(preset);
    const special = n_vocab - (architecture === 'llama' ? 11 : 15);
    expect(run.tokens.filter((token) => token >= special)).toEqual([]);
  });

  test('context counts: another first word gives another answer', async () => {
    const path = await make('tiny-llama', 'F16', {}, 7);
    const one = decodeGreedily(path, 'Paris looks at every job, and then', 12);
    const two = decodeGreedily(path, 'Water looks at every job, and then', 12);
    expect(one.tokens).not.toEqual(two.tokens);
  });
});

describe('tokenizers', () => {
  test.each([
    ['tiny-llama', '<|eot_id|>', true],
    ['tiny-qwen2', '<|im_end|>', false],
  ])('%s: any text survives, and words are tokens', async (preset, end, bos) => {
    const vocabulary = Vocabulary.open(await make(preset, 'Q8_0'));
    try {
      const back = (text: string): string =>
        vocabulary.detokenize(vocabulary.tokenize(text, { add_special: false }));
      fc.assert(
        fc.property(fc.string({ unit: 'binary' }), (text) => {
          expect(back(text)).toBe(text);
        }),
        { numRuns: 200 },
      );
      for (const text of [
        'Zürich 東京 🏔️ नमस्ते\t\n  x',
        'a\u0301b',
        '  leading',
        '1234567 3.14',
        "it's I'LL",
      ]) {
        expect(back(text)).toBe(text);
      }
      const tokens = vocabulary.tokenize(' the capital of France', { add_special: false });
      expect(tokens.length).toBeLessThan(12);
      const special = vocabulary.tokenize(end, { add_special: false, parse_special: true });
      expect(Array.from(special)).toEqual([vocabulary.eos]);
      expect(vocabulary.tokenize(end, { add_special: false }).length).toBeGreaterThan(1);
      expect(vocabulary.add_bos).toBe(bos);
    } finally {
      vocabulary.close();
    }
  });

  test('a large vocabulary is filled up without doubles, special tokens at the end', async () => {
    const path = await make('tiny-llama', 'Q4_0', { n_vocab: 128_256, n_layer: 1 });
    const tokens = readGguf(path).metadata.get('tokenizer.ggml.tokens');
    const values = tokens?.type === 'array' ? (tokens.values as string[]) : [];
    expect(values).toHaveLength(128_256);
    expect(new Set(values).size).toBe(128_256);
    expect([values[128_000], values[128_009], values[128_255]]).toEqual([
      '<|begin_of_text|>',
      '<|eot_id|>',
      '<|reserved_special_token_247|>',
    ]);
    const vocabulary = Vocabulary.open(path);
    expect(vocabulary.detokenize(vocabulary.tokenize('every letter counts 👍', { add_special: false }))).toBe(
      'every letter counts 👍',
    );
    vocabulary.close();
  });
});

describe('chat templates', () => {
  const messages = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: [{ type: 'text', text: 'Weather?' }] },
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ type: 'function', function: { name: 'get_weather', arguments: '{"city":"Zurich"}' } }],
    },
    { role: 'tool', content: '21 degrees' },
  ];
  const tools = [{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object' } } }];
  const render = (template: string): string =>
    new Template(template).render({
      messages,
      tools,
      bos_token: '<|begin_of_text|>',
      add_generation_prompt: true,
    });

  test('Llama', () => {
    expect(render(llamaChatTemplate)).toBe(
      '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.\n\nThese functions can be called:\n' +
        '{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}\n' +
        '\nTo call one, answer with nothing but a JSON object: {"name": the function, "parameters": its arguments}.<|eot_id|>' +
        '<|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "get_weather", "parameters": {"city":"Zurich"}}<|eot_id|>' +
        '<|start_header_id|>ipython<|end_header_id|>\n\n21 degrees<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\n',
    );
  });

  test('Qwen', () => {
    expect(render(qwenChatTemplate)).toBe(
      '<|im_start|>system\nBe brief.\n\n# Tools\n\nThese functions can be called:\n<tools>\n' +
        '{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}\n' +
        '</tools>\n\nTo call one, write its name and arguments as JSON between the tags:\n<tool_call>\n' +
        '{"name": the function, "arguments": its arguments}\n</tool_call><|im_end|>\n' +
        '<|im_start|>user\nWeather?<|im_end|>\n' +
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"Zurich"}}\n</tool_call><|im_end|>\n' +
        '<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response><|im_end|>\n' +
        '<|im_start|>assistant\n',
    );
  });
});
