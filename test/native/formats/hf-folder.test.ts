import { mkdtempSync, rmSync, truncateSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readHfFolder } from '../../../native/formats/hf-folder.ts';
import { readSafetensors } from '../../../native/formats/safetensors.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { safetensorsBytes, tinyConfig, writeTinyHfFolder } from '../../control/model-source/support.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-hf-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function failure(work: () => unknown): HpcserveError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(HpcserveError);
    return error as HpcserveError;
  }
  throw new Error('nothing was thrown');
}

describe('a Hugging Face folder', () => {
  test.each([1, 3])('of %i shards is summarized from headers', (shards) => {
    writeTinyHfFolder(folder, { shards });
    const { files, summary } = readHfFolder(folder);
    expect(files).toHaveLength(shards);
    expect(summary).toMatchObject({
      format: 'safetensors',
      architecture: 'qwen2',
      n_params: 10 * 64 + 2 * 128 * 64 + 64,
      n_layer: 2,
      head_dim: 16,
      quantization: 'BF16',
      kv_bytes_per_token: 2 * 2 * 2 * 16 * 2,
      weight_bytes_of: { embedding: 1280, layers: [16384, 16384], output: 128 },
      has_chat_template: true,
    });
    expect(summary.supported_by_native).toContain('GGUF');
  });

  test('weights that lie there a second time, in the format of Mistral, are not counted', () => {
    writeTinyHfFolder(folder);
    const once = readHfFolder(folder).summary;
    const copy = safetensorsBytes({ 'tok_embeddings.weight': [10, 64], 'norm.weight': [64] });
    writeFileSync(join(folder, 'consolidated.safetensors'), copy);
    const { files, summary } = readHfFolder(folder);
    expect(files.map(({ path }) => path)).toEqual([join(folder, 'model.safetensors')]);
    expect(summary).toEqual(once);
    unlinkSync(join(folder, 'model.safetensors'));
    expect(readHfFolder(folder).files.map(({ path }) => path)).toEqual([
      join(folder, 'consolidated.safetensors'),
    ]);
  });

  test('everything that is missing is named at once', () => {
    writeFileSync(join(folder, 'pytorch_model.bin'), 'x');
    const error = failure(() => readHfFolder(folder));
    expect(error.code).toBe('E_MODEL_FOLDER');
    expect(error.because.join('; ')).toMatch(/config\.json.*no tokenizer.*pytorch_model\.bin/);
  });

  test('a shard that the index names and the folder lacks', () => {
    writeTinyHfFolder(folder, { shards: 3 });
    unlinkSync(join(folder, 'model-00002-of-00003.safetensors'));
    expect(failure(() => readHfFolder(folder)).because.join()).toContain('model-00002-of-00003.safetensors');
  });

  test('a shard that is cut off', () => {
    writeTinyHfFolder(folder, { shards: 3 });
    truncateSync(join(folder, 'model-00002-of-00003.safetensors'), 3000);
    const error = failure(() => readHfFolder(folder));
    expect(error.code).toBe('E_MODEL_CUT_OFF');
    expect(error.because[0]).toMatch(/needs bytes \d+ to \d+, the file has 3000/);
  });

  test('shards of another download than the index', () => {
    writeTinyHfFolder(folder, { shards: 2 });
    writeFileSync(join(folder, 'model-00001-of-00002.safetensors'), safetensorsBytes({ other: [2, 2] }));
    expect(failure(() => readHfFolder(folder)).because.join()).toContain('is not in model-00001-of-00002');
  });

  test('an index that points outside of the folder', () => {
    writeTinyHfFolder(folder, { shards: 2 });
    const index = { weight_map: { a: '../../etc/passwd' } };
    writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify(index));
    expect(failure(() => readHfFolder(folder)).because.join()).toContain('../../etc/passwd');
  });

  test('a config.json that is damaged or describes something else', () => {
    writeTinyHfFolder(folder);
    writeFileSync(join(folder, 'config.json'), '{"model_type": ');
    expect(failure(() => readHfFolder(folder)).code).toBe('E_MODEL_FOLDER');
    writeFileSync(join(folder, 'config.json'), '{"model_type": "vit"}');
    const error = failure(() => readHfFolder(folder));
    expect(error.code).toBe('E_MODEL_METADATA');
    expect(error.because.join()).toContain('num_hidden_layers');
  });

  test('experts count by the share that a token uses, packed weights by their bits', () => {
    writeTinyHfFolder(folder);
    const config = { ...tinyConfig, model_type: 'mixtral', num_local_experts: 4, num_experts_per_tok: 1 };
    writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
    const tensors = {
      'model.layers.0.block_sparse_moe.experts.0.w1.weight': [8, 8],
      'lm_head.weight': [4, 4],
    };
    writeFileSync(join(folder, 'model.safetensors'), safetensorsBytes(tensors));
    expect(readHfFolder(folder).summary).toMatchObject({ n_params: 80, n_params_active: 32 });
    const packed = { ...tinyConfig, quantization_config: { quant_method: 'awq', bits: 4 } };
    writeFileSync(join(folder, 'config.json'), JSON.stringify(packed));
    writeFileSync(join(folder, 'model.safetensors'), safetensorsBytes({ 'a.qweight': [8, 8] }, 'I32', 4));
    expect(readHfFolder(folder).summary).toMatchObject({ n_params: 512, quantization: 'awq-4bit' });
  });
});

describe('a safetensors header', () => {
  const file = (bytes: Uint8Array): string => {
    const path = join(folder, 'a.safetensors');
    writeFileSync(path, bytes);
    return path;
  };
  const withHeader = (header: unknown, data: number): Buffer => {
    const json = Buffer.from(JSON.stringify(header));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(json.length));
    return Buffer.concat([length, json, Buffer.alloc(data)]);
  };

  test.each([
    ['a page', Buffer.from('<html>Unauthorized</html>'), 'E_MODEL_FORMAT', 'HTML'],
    [
      'a huge header',
      Buffer.from([255, 255, 255, 255, 255, 255, 255, 127, 0x7b, 0x22]),
      'E_MODEL_FORMAT',
      '',
    ],
    [
      'broken JSON',
      Buffer.concat([Buffer.from([4, 0, 0, 0, 0, 0, 0, 0]), Buffer.from('{"a"')]),
      'E_MODEL_HEADER',
      'JSON',
    ],
    [
      'a wrong size',
      withHeader({ a: { dtype: 'F32', shape: [2], data_offsets: [0, 4] } }, 4),
      'E_MODEL_HEADER',
      '4 bytes',
    ],
    [
      'a gap',
      withHeader({ a: { dtype: 'F32', shape: [1], data_offsets: [4, 8] } }, 8),
      'E_MODEL_HEADER',
      'begins at',
    ],
    [
      'an unknown type',
      withHeader({ a: { dtype: 'F13', shape: [1], data_offsets: [0, 4] } }, 4),
      'E_MODEL_TENSOR_TYPE',
      'F13',
    ],
    [
      'trailing bytes',
      withHeader({ a: { dtype: 'F32', shape: [1], data_offsets: [0, 4] } }, 9),
      'E_MODEL_HEADER',
      '5 bytes follow',
    ],
  ])('%s is refused', (_, bytes, code, words) => {
    const error = failure(() => readSafetensors(file(bytes)));
    expect(error.code).toBe(code);
    expect(error.toText()).toContain(words);
  });
});
