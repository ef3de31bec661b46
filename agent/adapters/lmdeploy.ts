/**
 * LMDeploy's `lmdeploy serve api_server`, with TurboMind where it knows the model
 * (https://lmdeploy.readthedocs.io/en/latest/llm/api_server.html). It takes keys as arguments only, so it listens on a
 * socket instead.
 */
import { join } from 'node:path';
import { shareOfFree } from '../../spec/engine-memory.ts';
import { type EngineAdapter, loadOf, metricSum, metricValue, option, unsupportedOption } from './adapter.ts';
import { planned, toldContext } from './engine-args.ts';
import { onSocket, pythonProbe, unbindableHost } from './python-socket.ts';

const dtypes: Record<string, string> = {
  bf16: 'bfloat16',
  f16: 'float16',
  fp16: 'float16',
};
/** Formats of weights; others are read from the folder of the model. */
const formats = new Set(['awq', 'gptq', 'fp8', 'mxfp4']);

export const lmdeploy: EngineAdapter = {
  name: 'lmdeploy',
  readiness_path: '/health',
  metrics_path: '/metrics',
  ...pythonProbe('lmdeploy'),

  commandLine(unit, context) {
    const { model } = unit;
    if (unit.pipeline > 1) throw unsupportedOption(model, 'LMDeploy', 'parallel.pipeline');
    const { precision } = model;
    if (precision !== 'auto' && dtypes[precision] === undefined && !formats.has(precision))
      throw unsupportedOption(model, 'LMDeploy', `precision ${precision}`);
    const socket = join(context.runtime_folder, 'engine.sock');
    return {
      argv: [
        ...context.engine_prefix,
        'python3',
        '-c',
        onSocket('lmdeploy'),
        'serve',
        'api_server',
        unit.model_path,
        ...option('--model-name', model.name),
        ...option('--server-name', unbindableHost),
        ...option('--tp', unit.tensor),
        ...planned(unit, ['--session-len'], toldContext(unit)),
        ...planned(unit, ['--max-batch-size'], model.max_sequences),
        ...planned(unit, ['--max-prefill-token-num'], model.prefill_chunk_tokens),
        ...planned(unit, ['--cache-max-entry-count'], shareOfFree(unit)),
        ...option('--dtype', dtypes[precision]),
        ...option('--model-format', formats.has(precision) ? precision : undefined),
        ...option('--chat-template', model.chat_template),
        ...model.engine_args,
      ],
      env: { HPCSERVE_ENGINE_SOCKET: socket },
      listen: { kind: 'socket', path: socket },
      files: [],
      links: [],
    };
  },

  parseMetrics: (text, unit) => {
    const used = metricValue(text, 'lmdeploy:gpu_cache_usage_perc');
    return loadOf({
      running: metricValue(text, 'lmdeploy:num_requests_running'),
      waiting: metricValue(text, 'lmdeploy:num_requests_waiting'),
      kv_tokens_total: used === undefined ? undefined : unit.kv_tokens,
      kv_tokens_used: used === undefined ? undefined : Math.round(used * unit.kv_tokens),
      activity: metricSum(text, ['lmdeploy:prompt_tokens_total', 'lmdeploy:generation_tokens_total']),
    });
  },
};
