/**
 * Hugging Face's Text Generation Inference, `text-generation-launcher`
 * (https://huggingface.co/docs/text-generation-inference/reference/launcher). Its key is read from API_KEY.
 */
import { join } from 'node:path';
import { shareOfAll } from '../../spec/engine-memory.ts';
import {
  type EngineAdapter,
  loadOf,
  metricSum,
  metricValue,
  option,
  optionsInHelp,
  unsupportedOption,
} from './adapter.ts';
import { planned, toldContext } from './engine-args.ts';
import { limitsOf, numberIn } from './limits.ts';
import { servedLink } from './python-socket.ts';

const program = 'text-generation-launcher';
const dtypes: Record<string, string> = { bf16: 'bfloat16', f16: 'float16', fp16: 'float16' };

export const tgi: EngineAdapter = {
  name: 'tgi',
  readiness_path: '/health',
  metrics_path: '/metrics',
  // Its routes for SageMaker are merged outside of what asks for the key (router/src/server.rs).
  open_paths: ['/invocations', '/metrics'],

  probeArgv: (prefix) => [...prefix, program, '--version'],
  furtherProbeArgv: (prefix) => [...prefix, program, '--help'],
  parseProbe: (output) => {
    const version = /^text-generation-launcher (\S+)$/m.exec(output)?.[1];
    return version === undefined
      ? undefined
      : { version, unix_socket: false, options: optionsInHelp(output) };
  },

  commandLine(unit, context) {
    const { model } = unit;
    if (unit.pipeline > 1) throw unsupportedOption(model, 'TGI', 'parallel.pipeline');
    if (model.chat_template !== undefined) throw unsupportedOption(model, 'TGI', 'chat_template');
    const { folder, link } = servedLink(unit, context);
    const dtype = dtypes[model.precision];
    const told = toldContext(unit);
    return {
      argv: [
        ...context.engine_prefix,
        program,
        // It calls a model by the path it was given.
        ...option('--model-id', model.name),
        '--hostname',
        '127.0.0.1',
        ...option('--port', context.port),
        ...option('--num-shard', unit.tensor),
        ...planned(unit, ['--max-total-tokens'], told),
        ...planned(unit, ['--max-input-tokens', '--max-total-tokens'], told && told - 1),
        ...planned(unit, ['--max-concurrent-requests'], model.max_sequences),
        ...planned(unit, ['--max-batch-prefill-tokens'], model.prefill_chunk_tokens),
        ...planned(unit, ['--cuda-memory-fraction'], shareOfAll(unit)),
        ...(dtype !== undefined || model.precision === 'auto'
          ? option('--dtype', dtype)
          : option('--quantize', model.precision)),
        // Shared by all launchers of a node unless told otherwise.
        ...option('--shard-uds-path', join(context.runtime_folder, 'shard')),
        '--usage-stats',
        'off',
        ...model.engine_args,
      ],
      env: { API_KEY: context.key },
      listen: { kind: 'loopback', port: context.port },
      files: [],
      links: [link],
      cwd: folder,
    };
  },

  limit_paths: ['/info'],
  parseLimits: ([info = '']) =>
    limitsOf({
      max_sequences: numberIn(info, 'max_concurrent_requests'),
      kv_tokens: numberIn(info, 'max_batch_total_tokens'),
      context_tokens: numberIn(info, 'max_total_tokens'),
    }),

  parseMetrics: (text) =>
    loadOf({
      running: metricValue(text, 'tgi_batch_current_size'),
      waiting: metricValue(text, 'tgi_queue_size'),
      activity: metricSum(text, ['tgi_batch_inference_count', 'tgi_request_generated_tokens_sum']),
    }),
};
