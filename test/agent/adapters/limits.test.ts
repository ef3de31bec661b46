/** What engines say of the limits that they chose, as they print it. */
import { expect, it } from 'vitest';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { labelsOf, numberIn } from '../../../agent/adapters/limits.ts';
import { unitOf } from '../support.ts';

const models = '{"object":"list","data":[{"id":"m","object":"model","max_model_len":40960,"permission":[]}]}';
const cache = (more: string): string =>
  `# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",${more}num_gpu_blocks="573",sliding_window="None"} 1.0\n`;

it('vLLM: blocks of its cache, its context, and what its log says', () => {
  const { parseLimits, parseMetrics } = adapterOf('vllm');
  expect(parseLimits!([models, cache('')], '')).toEqual({
    kv_tokens: 573 * 16,
    context_tokens: 40_960,
    prefix_caching: true,
  });
  // Newer versions count tokens themselves: blocks of hybrid models are no measure.
  expect(parseLimits!(['', cache('kv_cache_size_tokens="9000",')], '')).toMatchObject({ kv_tokens: 9000 });
  const log = [
    "INFO non-default args: {'model_tag': '/m', 'max_num_seqs': 64, 'uds': '/run/x'}",
    'INFO GPU KV cache size: 34,952 tokens, Maximum concurrency for 8,192 tokens per request: 4.27x',
  ].join('\n');
  expect(parseLimits!(['', ''], log)).toEqual({ max_sequences: 64, kv_tokens: 34_952 });
  expect(parseLimits!(['', ''], '')).toEqual({});
  // Of how much of it is in use, the same total is the measure.
  const metrics = `${cache('')}vllm:kv_cache_usage_perc{engine="0"} 0.5\n`;
  expect(parseMetrics!(metrics, unitOf({ name: 'm' }, { kv_tokens: 7 }))).toMatchObject({
    kv_tokens_total: 9168,
    kv_tokens_used: 4584,
  });
});

it('SGLang: whichever of its two paths answers', () => {
  const { parseLimits, limit_paths } = adapterOf('sglang');
  const info = JSON.stringify({
    model_path: '/m',
    max_running_requests: null,
    max_total_num_tokens: 171_008,
    internal_states: [{ effective_max_running_requests_per_dp: 43, context_len: 169_000 }],
    disable_radix_cache: false,
  });
  const expected = { max_sequences: 43, kv_tokens: 171_008, context_tokens: 169_000, prefix_caching: true };
  expect(limit_paths).toHaveLength(2);
  expect(parseLimits!([info, ''], '')).toEqual(expected);
  expect(parseLimits!(['', info], '')).toEqual(expected);
  expect(parseLimits!(['Not Found', ''], '')).toEqual({});
});

it('llama-server: its slots, and how long a sequence of one may be', () => {
  const props = '{"default_generation_settings":{"n_ctx":4096,"params":{"seed":1}},"total_slots":4}';
  expect(adapterOf('llama.cpp').parseLimits!([props], '')).toEqual({
    max_sequences: 4,
    context_tokens: 4096,
  });
  expect(adapterOf('llama.cpp').parseLimits!([''], '')).toEqual({});
});

it('TGI: its limits of requests and tokens', () => {
  const info = '{"max_concurrent_requests":128,"max_total_tokens":8192,"max_batch_total_tokens":300000}';
  expect(adapterOf('tgi').parseLimits!([info], '')).toEqual({
    max_sequences: 128,
    kv_tokens: 300_000,
    context_tokens: 8192,
  });
});

it('numbers and labels are read where they stand, and nothing else is taken for one', () => {
  expect(numberIn('{"a":[{"b":{"n":3}}],"n":0}', 'n')).toBe(3);
  expect(numberIn('{"n":"3"}', 'n')).toBeUndefined();
  expect(numberIn('{"n":1.5}', 'n')).toBeUndefined();
  expect(numberIn('{"second":2}', 'first', 'second')).toBe(2);
  expect(numberIn('<html>', 'n')).toBeUndefined();
  expect(labelsOf('m{a="x,\\"y\\"",b="2"} 1', 'm')).toEqual(
    new Map([
      ['a', 'x,\\"y\\"'],
      ['b', '2'],
    ]),
  );
  expect(labelsOf('mm{a="1"} 1', 'm')).toBeUndefined();
});
