/**
 * llama.cpp's `llama-server` (tools/server/README.md there): the key is read from LLAMA_API_KEY; a host that ends
 * in `.sock` is a unix socket in builds whose help says so.
 */
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { concurrencyOf } from '../../spec/launch.ts';
import { type EngineAdapter, loadOf, metricValue, option, optionsInHelp } from './adapter.ts';
import { planned } from './engine-args.ts';
import { limitsOf, numberIn } from './limits.ts';

const program = 'llama-server';

export const llamaCpp: EngineAdapter = {
  name: 'llama.cpp',
  readiness_path: '/health',
  metrics_path: '/metrics',

  probeArgv: (prefix) => [...prefix, program, '--help'],
  furtherProbeArgv: (prefix) => [...prefix, program, '--version'],
  parseProbe: (output) => {
    if (!output.includes('--host')) return undefined;
    // `version: 5000 (1a2b3c4d)`: the number of the build, as its releases are called.
    const build = /^version: (\d+)\b/m.exec(output)?.[1];
    return {
      version: build === undefined ? 'unknown' : `b${build}`,
      unix_socket: /UNIX socket/i.test(output),
      options: optionsInHelp(output),
    };
  },

  commandLine(unit, context) {
    const { model } = unit;
    if (unit.device_count > 1) {
      throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${model.name}: llama-server does not split a replica by parallel.tensor or parallel.pipeline`,
        try: 'leave `parallel` out and pass --split-mode and --tensor-split in engine_args',
      });
    }
    const socket = join(context.runtime_folder, 'engine.sock');
    const listen = context.probed?.unix_socket
      ? ({ kind: 'socket', path: socket } as const)
      : ({ kind: 'loopback', port: context.port } as const);
    const onCpu = unit.device_kind === 'cpu' || context.emulated;
    return {
      argv: [
        ...context.engine_prefix,
        program,
        ...option('--model', unit.model_path),
        ...option('--alias', model.name),
        ...(listen.kind === 'socket'
          ? ['--host', listen.path]
          : ['--host', '127.0.0.1', '--port', String(listen.port)]),
        // All of its KV, which it divides among its slots.
        ...planned(unit, ['--ctx-size', '-c'], unit.kv_tokens),
        ...planned(unit, ['--parallel', '-np'], concurrencyOf(unit)),
        ...planned(unit, ['--threads', '-t'], Math.min(unit.threads, context.cores?.length ?? unit.threads)),
        ...planned(unit, ['--ubatch-size', '-ub'], model.prefill_chunk_tokens),
        ...planned(unit, ['--n-gpu-layers', '--gpu-layers', '-ngl'], onCpu ? 0 : 999),
        ...option('--cache-type-k', model.kv_type),
        ...option('--cache-type-v', model.kv_type),
        '--metrics',
        ...(model.chat_template === undefined
          ? ['--jinja']
          : ['--jinja', '--chat-template-file', model.chat_template]),
        ...model.engine_args,
      ],
      env: { LLAMA_API_KEY: context.key },
      listen,
      files: [],
      links: [],
    };
  },

  limit_paths: ['/props'],
  parseLimits([props = '']) {
    // Its KV is what it was told; of a slot it says how long a sequence may be.
    return limitsOf({
      max_sequences: numberIn(props, 'total_slots'),
      context_tokens: numberIn(props, 'n_ctx'),
    });
  },

  parseMetrics: (text) =>
    loadOf({
      running: metricValue(text, 'llamacpp:requests_processing'),
      waiting: metricValue(text, 'llamacpp:requests_deferred'),
      kv_tokens_used: metricValue(text, 'llamacpp:kv_cache_tokens'),
      activity: metricValue(text, 'llamacpp:n_decode_total'),
    }),
};
