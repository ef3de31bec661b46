/** Why an engine ended, from what it wrote: golden outputs of real engines, and the rules of reading them. */
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { firstCause, noteworthyLines } from '../../../agent/adapters/first-cause.ts';
import { isAccessLine, readLogLine } from '../../../agent/adapters/log-line.ts';
import { recordedFailures } from '../../../agent/adapters/recorded-failures.ts';

describe('prefixes of loggers', () => {
  test.each([
    [
      '(EngineCore_0 pid=123) ERROR 01-02 12:36:59 [core.py:712] ValueError: x',
      { source: 'EngineCore_0 pid=123', level: 'error', text: 'ValueError: x' },
    ],
    [
      '\u001b[1;36m(Worker_TP0 pid=7)\u001b[0;0m INFO 01-02 12:36:59 [gpu_worker.py:1]   indented',
      { source: 'Worker_TP0 pid=7', level: 'info', text: '  indented' },
    ],
    [
      '[2025-03-09 00:57:15 TP4] Watchdog timeout',
      { source: 'TP4', level: undefined, text: 'Watchdog timeout' },
    ],
    [
      '[rank0]: Traceback (most recent call last):',
      { source: 'rank0', level: undefined, text: 'Traceback (most recent call last):' },
    ],
    ['53.26.801.941 E CUDA error: x', { source: '', level: 'error', text: 'CUDA error: x' }],
    ['ValueError: x', { source: '', level: undefined, text: 'ValueError: x' }],
  ])('%j', (line, expected) => expect(readLogLine(line)).toEqual(expected));

  test.each([
    ['(APIServer pid=1) INFO:     127.0.0.1:52406 - "GET /health HTTP/1.1" 200 OK', true],
    ['INFO:      - "GET /metrics HTTP/1.1" 200 OK', true],
    ['[2025-03-09 00:57:15] INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500', true],
    ['srv  log_server_r: request: GET /health 127.0.0.1 200', true],
    ['RuntimeError: "GET /x HTTP/1.1" 200 is no model', false],
  ])('is of the log of requests: %s', (line, expected) => expect(isAccessLine(line)).toBe(expected));
});

const folder = new URL('recorded/', import.meta.url);

describe('recorded output', () => {
  const files = readdirSync(folder).filter((name) => name.endsWith('.txt'));
  test('is there', () => expect(files.length).toBeGreaterThan(5));

  test.each(files)('%s', (name) => {
    const [head = '', ...lines] = readFileSync(new URL(name, folder), 'utf8').trimEnd().split('\n');
    const expected = JSON.parse(head.replace(/^# /, '')) as { what?: string; line: string };
    const cause = firstCause(lines);
    expect({ what: cause?.what, line: cause?.line }).toEqual({ what: undefined, ...expected });
    // Nor is the cause lost where only the lines that matter are kept.
    expect(firstCause(noteworthyLines(lines, 400))?.line).toBe(cause?.line);
  });
});

/** Words of engines, as people have reported them to the projects. */
describe('recorded failures', () => {
  const lines: readonly [what: RegExp, line: string][] = [
    [
      /device’s memory is free/,
      'ValueError: Free memory on device cuda:0 (27.28/31.86 GiB) on startup is less than desired GPU memory utilization (0.97, 30.9 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.',
    ],
    [
      /no memory is left for KV/,
      'ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.',
    ],
    [
      /no memory is left for KV/,
      'RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.',
    ],
    [
      /shorter than one sequence/,
      "ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.2 GiB). Based on the available memory, the estimated maximum model length is 9824.",
    ],
    [
      /shorter than one sequence/,
      "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (19136). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    ],
    [
      /memory of the host is free/,
      'ValueError: Available memory on node 0 (9.88/12.46 GiB) on startup is less than desired CPU memory utilization (0.92, 11.46 GiB).',
    ],
    [
      /memory of the host is used up/,
      "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 90177536 bytes. Error code 12 (Cannot allocate memory)",
    ],
    [/memory of the host is used up/, 'OSError: [Errno 12] Cannot allocate memory'],
    [/shared memory/, 'RuntimeError: unable to write to file </torch_267_1>: No space left on device (28)'],
    [/a disk is full/, "OSError: [Errno 28] No space left on device: '/home/u/.cache/vllm'"],
    [/a package is missing/, "ModuleNotFoundError: No module named 'flashinfer'"],
    [/a package is missing/, 'ImportError: Please install the bitsandbytes package'],
    [
      /a library/,
      'llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory',
    ],
    [
      /a library/,
      "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /env/vllm/_C.abi3.so)",
    ],
    [
      /driver of the node is too old/,
      'RuntimeError: The NVIDIA driver on your system is too old (found version 11040).',
    ],
    [
      /no code for the device/,
      'RuntimeError: CUDA error: no kernel image is available for execution on the device',
    ],
    [
      /found no device/,
      'RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.',
    ],
    [
      /no compiler/,
      "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
    ],
    [
      /does not know the architecture/,
      "ValueError: Model architectures ['QWenLMHeadModel2'] are not supported for now. Supported architectures: dict_keys(['AquilaModel'])",
    ],
    [
      /does not know the architecture/,
      "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen9'",
    ],
    [
      /does not know the architecture/,
      '  Value error, The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this architecture.',
    ],
    [
      /this quantization/,
      'ValueError: Quantization method specified in the model config (awq) does not match the quantization method specified in the `quantization` argument (gptq).',
    ],
    [
      /this quantization/,
      'ValueError: The quantization method gptq_marlin is not supported for the current GPU. Minimum capability: 80. Current capability: 75.',
    ],
    [
      /in this precision/,
      'ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla V100-SXM2-16GB GPU has compute capability 7.0.',
    ],
    [
      /trained for/,
      "  Value error, User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=32768 or model_max_length=None in model's config.json).",
    ],
    [
      /split over so many/,
      'ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).',
    ],
    [/weights of the model are missing/, 'RuntimeError: Cannot find any model weights with `/models/m`'],
    [
      /weights of the model are missing/,
      'OSError: /models/m does not appear to have a file named config.json.',
    ],
    [
      /damaged or cut short/,
      'safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge',
    ],
    [
      /damaged or cut short/,
      "llama_model_load: error loading model: tensor 'blk.9.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete",
    ],
    [/other tensors/, "ValueError: There is no module or parameter named 'lm_head.bias' in LlamaForCausalLM"],
    [
      /code of its own/,
      'ValueError: The repository for /models/m contains custom code which must be executed to correctly load the model.',
    ],
    [
      /tokenizer/,
      "OSError: Can't load tokenizer for '/models/m'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    ],
    [
      /on the internet/,
      "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
    ],
    [/port or socket/, 'OSError: [Errno 98] Address already in use'],
    [/port or socket/, "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"],
    [
      /may not read or write/,
      "PermissionError: [Errno 13] Permission denied: '/home/other/.cache/huggingface'",
    ],
    [/too many files/, 'OSError: [Errno 24] Too many open files'],
    [
      /killed, or ended without a word/,
      'Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.',
    ],
    [/killed, or ended without a word/, 'Rank 0 scheduler is dead. Please check if there are relevant logs.'],
  ];

  test.each(lines)('%s: %s', (what, line) => {
    const cause = firstCause(['all is well', line, 'RuntimeError: later']);
    if (cause?.is_silent) throw new Error('an exception counts more than what follows from it');
    if (recordedFailures.some(({ consequence, test: is }) => consequence && is.test(line)))
      expect(firstCause(['all is well', line])!.what).toMatch(what);
    else {
      expect(cause!.what).toMatch(what);
      expect(cause!.line).toBe(line.trim());
    }
  });

  test('each says what to do', () => {
    for (const failure of recordedFailures) expect(failure.try.length, failure.what).toBeGreaterThan(20);
  });
});

describe('of several', () => {
  test('warnings and what an engine in order says are no cause', () => {
    const lines = [
      "WARNING 11-22 18:00:00 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')",
      'INFO 11-22 18:00:00 [x.py:1] No module named flash_attn: using another kernel',
      'KeyError: what really happened',
    ];
    expect(firstCause(lines)).toEqual({ line: 'KeyError: what really happened' });
  });

  test('the first exception counts, in whatever process, and none that only points to another', () => {
    const lines = [
      '(APIServer pid=1) INFO 11-22 18:00:00 [api.py:1] starting',
      '(EngineCore pid=2) ERROR 11-22 18:00:01 [core.py:1] Traceback (most recent call last):',
      '(EngineCore pid=2) ERROR 11-22 18:00:01 [core.py:1]   File "core.py", line 3, in run',
      '(EngineCore pid=2) ERROR 11-22 18:00:01 [core.py:1] pkg.sub.OddError: the cause',
      '(APIServer pid=1) Traceback (most recent call last):',
      '(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}',
    ];
    expect(firstCause(lines)).toEqual({ line: 'pkg.sub.OddError: the cause' });
    expect(firstCause(lines.slice(4))).toBeUndefined();
  });

  test('what pydantic says of a value stands in the next line', () => {
    const lines = [
      'pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig',
      '  Value error, nobody has met this one [type=value_error]',
    ];
    expect(firstCause(lines)!.line).toBe(`${lines[0]} ${lines[1]!.trim()}`);
  });

  test('a request that failed is none, unless it says that the device did', () => {
    const asgi = [
      'ERROR:    Exception in ASGI application',
      'Traceback (most recent call last):',
      '  File "a"',
    ];
    expect(firstCause([...asgi, 'ValueError: a client’s', 'SomethingError: the engine’s'])).toEqual({
      line: 'SomethingError: the engine’s',
    });
    expect(
      firstCause([...asgi, 'RuntimeError: CUDA error: an illegal memory access was encountered'])!.scope,
    ).toBe('device');
  });
});
