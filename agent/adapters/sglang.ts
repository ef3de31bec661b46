/**
 * SGLang: `python3 -m sglang.launch_server` (https://docs.sglang.ai/advanced_features/server_arguments.html). It
 * takes its key as an argument only, so the key goes into a file for `--config`, which no process list shows. Versions
 * up to 0.5.2 have no such option: to those the argument is given within their own process.
 */
import { join } from 'node:path';
import { shareOfWeightsAndKv } from '../../spec/engine-memory.ts';
import {
  type EngineAdapter,
  hostAndPort,
  loadOf,
  metricSum,
  metricValue,
  option,
  optionIfKnown,
} from './adapter.ts';
import { chooseParsers } from './answer-parsers.ts';
import { planned, toldContext } from './engine-args.ts';
import { limitsOf, numberIn } from './limits.ts';
import { readSglangProbe, sglangProbeArgv } from './sglang-probe.ts';

const dtypes: Record<string, string> = {
  bf16: 'bfloat16',
  f16: 'half',
  fp16: 'half',
  f32: 'float',
  fp32: 'float',
};

/** As `python3 -m sglang.launch_server`, with the key from the environment behind the arguments. */
const launchWithKey = `
import os, runpy, sys
sys.argv = ["sglang.launch_server", *sys.argv[1:], "--api-key", os.environ.pop("HPCSERVE_ENGINE_KEY")]
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
`.trim();

export const sglang: EngineAdapter = {
  name: 'sglang',
  readiness_path: '/health',
  metrics_path: '/metrics',
  detokenize_path: '/detokenize',
  tokenize_path: '/tokenize',
  // Versions that do not know it pay no heed to it.
  takes_cache_salt: true,

  probeArgv: sglangProbeArgv,
  parseProbe: readSglangProbe,

  commandLine(unit, context) {
    const { model } = unit;
    const { place } = context;
    const config = join(context.runtime_folder, 'sglang.yaml');
    const dtype = dtypes[model.precision];
    const parsers = chooseParsers(unit, context.probed);
    const readsConfig = context.probed?.options?.has('--config') ?? true;
    const env: Record<string, string> = readsConfig ? {} : { HPCSERVE_ENGINE_KEY: context.key };
    const onCpu = unit.device_kind === 'cpu' || context.emulated;
    return {
      argv: [
        ...context.engine_prefix,
        'python3',
        ...(readsConfig ? ['-m', 'sglang.launch_server', '--config', config] : ['-c', launchWithKey]),
        ...option('--model-path', unit.model_path),
        ...option('--served-model-name', model.name),
        '--host',
        '127.0.0.1',
        ...option('--port', context.port),
        ...option('--tp-size', unit.tensor),
        ...option('--pp-size', unit.pipeline),
        ...(place === undefined
          ? []
          : [
              ...option('--nnodes', place.nodes),
              ...option('--node-rank', place.rank),
              ...option('--dist-init-addr', hostAndPort(place.leader)),
            ]),
        ...planned(unit, ['--context-length'], toldContext(unit)),
        ...planned(unit, ['--max-running-requests'], model.max_sequences),
        ...planned(unit, ['--chunked-prefill-size'], model.prefill_chunk_tokens),
        // On CPUs a share would be one of the whole node's memory, whoever else is there.
        ...(onCpu
          ? planned(unit, ['--max-total-tokens', '--mem-fraction-static'], unit.memory && unit.kv_tokens)
          : planned(unit, ['--mem-fraction-static', '--max-total-tokens'], shareOfWeightsAndKv(unit))),
        ...option('--dtype', dtype),
        ...(model.precision !== 'auto' && dtype === undefined
          ? option('--quantization', model.precision)
          : []),
        ...(onCpu ? planned(unit, ['--device'], 'cpu') : []),
        ...option('--chat-template', model.chat_template),
        ...option('--tool-call-parser', parsers.tools),
        ...option('--reasoning-parser', parsers.reasoning),
        ...optionIfKnown(context.probed, '--uvicorn-access-log-exclude-prefixes', '/health', '/metrics'),
        '--enable-metrics',
        ...model.engine_args,
      ],
      env,
      listen: { kind: 'loopback', port: context.port },
      files: readsConfig ? [{ path: config, content: `api-key: "${context.key}"\n` }] : [],
      links: [],
      notices: parsers.notices,
    };
  },

  // Newer versions have it as /server_info.
  limit_paths: ['/get_server_info', '/server_info'],
  parseLimits(answers) {
    const said = answers.find((text) => numberIn(text, 'max_total_num_tokens') !== undefined) ?? '';
    return limitsOf({
      max_sequences: numberIn(said, 'effective_max_running_requests_per_dp', 'max_running_requests'),
      kv_tokens: numberIn(said, 'max_total_num_tokens'),
      context_tokens: numberIn(said, 'context_len', 'context_length', 'max_req_input_len'),
      prefix_caching: said === '' ? undefined : !/"disable_radix_cache": ?true/.test(said),
    });
  },

  parseMetrics: (text) =>
    loadOf({
      running: metricValue(text, 'sglang:num_running_reqs'),
      waiting: metricValue(text, 'sglang:num_queue_reqs'),
      kv_tokens_total: metricValue(text, 'sglang:max_total_num_tokens'),
      kv_tokens_used: metricValue(text, 'sglang:num_used_tokens'),
      // Its counters move when a request ends, its use of the cache while it runs.
      activity: metricSum(text, [
        'sglang:num_used_tokens',
        'sglang:prompt_tokens_total',
        'sglang:generation_tokens_total',
      ]),
      prefix_queried_tokens: metricValue(text, 'sglang:prompt_tokens_total'),
      prefix_found_tokens: metricValue(text, 'sglang:cached_tokens_total'),
    }),
};
