/**
 * Hugging Face's `transformers serve` (https://huggingface.co/docs/transformers/serving). It knows neither keys nor
 * unix sockets, and a port without a key is open to everybody on the node. So its own entry point is run with a
 * uvicorn that listens on a socket in a 0700 folder; were that ever bypassed, the host given to it cannot be bound.
 */
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type EngineAdapter, option } from './adapter.ts';

const launchCode = `
import os, sys, uvicorn, uvicorn.main
class SocketConfig(uvicorn.Config):
    def __init__(self, app, **settings):
        for name in ("host", "port"):
            settings.pop(name, None)
        super().__init__(app, uds=os.environ["HPCSERVE_ENGINE_SOCKET"], **settings)
uvicorn.Config = uvicorn.main.Config = SocketConfig
os.umask(0o077)
import importlib.metadata
entries = importlib.metadata.entry_points(group="console_scripts", name="transformers")
sys.argv[0] = "transformers"
sys.exit(next(iter(entries)).load()())
`.trim();

const probeCode = 'import importlib.metadata as m; print("transformers", m.version("transformers"))';

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

  probeArgv: (prefix) => [...prefix, 'python3', '-c', probeCode],
  parseProbe: (output) => {
    const version = /^transformers (\S+)$/m.exec(output)?.[1];
    return version === undefined ? undefined : { version, unix_socket: true };
  },

  commandLine(unit, context) {
    const { model } = unit;
    const refuse = (option: string): HpcserveError =>
      new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${model.name}: \`transformers serve\` has no ${option}`,
        try: `remove ${option} from model.yaml, or choose another engine`,
      });
    if (unit.device_count > 1) throw refuse('parallel');
    if (model.chat_template !== undefined) throw refuse('chat_template');
    const dtype = dtypes[model.precision];
    if (dtype === undefined) throw refuse(`precision ${model.precision}`);
    // It calls a model by the path it was given: a link of the served name makes that the name clients see.
    const link = join(context.runtime_folder, 'models', model.name);
    const socket = join(context.runtime_folder, 'engine.sock');
    return {
      argv: [
        ...context.engine_prefix,
        'python3',
        '-c',
        launchCode,
        'serve',
        model.name,
        '--host',
        'listens-on-a-unix-socket.invalid',
        ...option('--dtype', dtype),
        ...option('--device', unit.device_kind === 'cpu' || context.emulated ? 'cpu' : 'auto'),
        ...model.engine_args,
      ],
      env: {
        HPCSERVE_ENGINE_SOCKET: socket,
        HF_HUB_OFFLINE: '1',
        // One of Python's math libraries would otherwise take every core of the node.
        OMP_NUM_THREADS: String(unit.threads),
        MKL_NUM_THREADS: String(unit.threads),
      },
      listen: { kind: 'socket', path: socket },
      files: [],
      links: [{ path: link, target: unit.model_path }],
      cwd: join(context.runtime_folder, 'models'),
    };
  },
};
