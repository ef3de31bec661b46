/**
 * TensorRT-LLM's `trtllm-serve` with its PyTorch backend
 * (https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.html). It knows neither keys nor unix sockets, so it is
 * run on one. It binds its port before it is told to listen; nothing ever listens there. Its /metrics are JSON of
 * iterations that must be asked for: the agent counts requests itself.
 */
import { join } from 'node:path';
import { shareOfFree } from '../../spec/engine-memory.ts';
import { type EngineAdapter, option, unsupportedOption } from './adapter.ts';
import { planned, toldContext } from './engine-args.ts';
import { onSocket, pythonProbe, servedLink } from './python-socket.ts';

export const tensorrtLlm: EngineAdapter = {
  name: 'tensorrt-llm',
  readiness_path: '/health',
  ...pythonProbe('tensorrt_llm'),

  commandLine(unit, context) {
    const { model } = unit;
    // It takes numbers and their sizes from the model's folder.
    if (model.precision !== 'auto')
      throw unsupportedOption(model, 'TensorRT-LLM', `precision ${model.precision}`);
    const socket = join(context.runtime_folder, 'engine.sock');
    const { folder, link } = servedLink(unit, context);
    return {
      argv: [
        ...context.engine_prefix,
        'python3',
        '-c',
        onSocket('trtllm-serve'),
        link.path,
        '--backend',
        'pytorch',
        '--host',
        '127.0.0.1',
        ...option('--port', context.port),
        ...option('--tp_size', unit.tensor),
        ...option('--pp_size', unit.pipeline),
        ...planned(unit, ['--max_seq_len'], toldContext(unit)),
        ...planned(unit, ['--max_batch_size'], model.max_sequences),
        ...planned(unit, ['--max_num_tokens'], model.prefill_chunk_tokens),
        ...planned(unit, ['--kv_cache_free_gpu_memory_fraction'], shareOfFree(unit)),
        ...option('--chat_template', model.chat_template),
        ...model.engine_args,
      ],
      env: { HPCSERVE_ENGINE_SOCKET: socket },
      listen: { kind: 'socket', path: socket },
      files: [],
      links: [link],
      cwd: folder,
    };
  },
};
