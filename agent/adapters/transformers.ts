/**
 * Hugging Face's `transformers serve` (https://huggingface.co/docs/transformers/serving). It knows neither keys nor
 * unix sockets, so it is run on one.
 */
import { join } from 'node:path';
import type { HpcserveError } from '../../spec/errors/error.ts';
import { type EngineAdapter, option, unsupportedOption } from './adapter.ts';
import { onSocket, pythonProbe, servedLink, unbindableHost } from './python-socket.ts';

const dtypes: Record<string, string> = {
  auto: 'auto',
  bf16: 'bfloat16',
  f16: 'float16',
  fp16: 'float16',
  f32: 'float32',
  fp32: 'float32',
};

export const transformers: EngineAdapter = {
  name: 'transformers',
  readiness_path: '/health',
  ...pythonProbe('transformers'),

  commandLine(unit, context) {
    const { model } = unit;
    const refuse = (what: string): HpcserveError => unsupportedOption(model, '`transformers serve`', what);
    if (unit.device_count > 1) throw refuse('parallel');
    if (model.chat_template !== undefined) throw refuse('chat_template');
    const dtype = dtypes[model.precision];
    if (dtype === undefined) throw refuse(`precision ${model.precision}`);
    // It calls a model by the path it was given: a link of the served name makes that the name clients see.
    const { folder, link } = servedLink(unit, context);
    const socket = join(context.runtime_folder, 'engine.sock');
    return {
      argv: [
        ...context.engine_prefix,
        'python3',
        '-c',
        onSocket('transformers'),
        'serve',
        model.name,
        '--host',
        unbindableHost,
        ...option('--dtype', dtype),
        ...option('--device', unit.device_kind === 'cpu' || context.emulated ? 'cpu' : 'auto'),
        ...model.engine_args,
      ],
      env: {
        HPCSERVE_ENGINE_SOCKET: socket,
        // One of Python's math libraries would otherwise take every core of the node.
        OMP_NUM_THREADS: String(unit.threads),
        MKL_NUM_THREADS: String(unit.threads),
      },
      listen: { kind: 'socket', path: socket },
      files: [],
      links: [link],
      cwd: folder,
    };
  },
};
