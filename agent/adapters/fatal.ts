/**
 * What an engine's last lines say of its end. Only ends (and hangs) are judged, never lines of an engine that serves:
 * prompts may be among them, and whoever writes a prompt must not be able to end an engine by its words.
 */

/**
 * `device`: the device, its driver, or what links devices failed; nothing that runs there can be trusted, and another
 * process on it may meet the same. `process`: this process cannot do what it was asked to, and another start of it
 * would fail like this one.
 */
export type FatalScope = 'device' | 'process';

export interface FatalSign {
  scope: FatalScope;
  /** What happened, in words that follow `because`. */
  what: string;
  /** The line that says so. */
  line: string;
  /** It was an option of its command line that this version does not take. */
  option?: true;
}

interface Pattern {
  scope: FatalScope;
  what: string;
  test: RegExp;
  option?: true;
}

/** Messages of PyTorch's NCCL process groups, CUDA, ROCm, vLLM, SGLang and ggml; golden lines of each in the tests. */
const patterns: readonly Pattern[] = [
  {
    // Of argparse (vLLM, SGLang, LMDeploy), clap (TGI), click and typer (trtllm-serve, transformers), llama.cpp.
    scope: 'process',
    what: 'this version of the engine does not take an option it was given',
    test: /\berror: unrecognized arguments: -|\berror: (argument -.*: (invalid|expected)|ambiguous option: -)|\berror: unexpected argument '-|\berror: invalid value '.*' for '-|\bno such option:? '?-|\berror: invalid argument: -/i,
    option: true,
  },
  {
    scope: 'process',
    what: 'the memory of the device is used up',
    test: /\b(CUDA|HIP) out of memory\b|\b(CUDA|HIP|ROCm) error: out of memory\b|\bcudaMalloc failed: out of memory\b|\bhipMalloc failed: out of memory\b|\bCUBLAS_STATUS_ALLOC_FAILED\b/,
  },
  {
    scope: 'device',
    what: 'a collective operation between devices did not end in time',
    test: /\bWatchdog caught collective operation timeout\b|\bTimeout at NCCL work\b/,
  },
  {
    scope: 'device',
    what: 'the library that links devices failed',
    test: /\b(NCCL|RCCL) error\b|\bncclUnhandledCudaError\b|\bncclSystemError\b|\bncclRemoteError\b/,
  },
  {
    scope: 'device',
    what: 'the device has a memory error that cannot be corrected',
    test: /\buncorrectable (ECC|NVLink) error\b|\bCUDA_ERROR_ECC_UNCORRECTABLE\b|\bcudaErrorECCUncorrectable\b/,
  },
  {
    scope: 'device',
    what: 'the device is gone',
    test: /\bGPU is lost\b|\bhas fallen off the bus\b|\bno CUDA-capable device is detected\b|\bUnable to determine the device handle for GPU\b/,
  },
  {
    scope: 'device',
    what: 'the device failed',
    test: /\b(CUDA|HIP|ROCm) error: (?!out of memory)|\bCUDA driver error: (?!out of memory)|\bcuda runtime error \(\d+\)|\bMemory access fault by GPU node-\d+|\bHSA_STATUS_ERROR_(?!OUT_OF_RESOURCES)\w+|\b(CUBLAS|CUDNN|HIPBLAS|CUSOLVER)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)\b/,
  },
  {
    scope: 'device',
    what: 'the engine found its own computation hanging',
    test: /\bWatchdog timeout \(self\.watchdog_timeout=|\bwatchdog timeout \(self\.(soft_)?watchdog_timeout=|\bEngine iteration timed out\b|\bTimeoutError: RPC call to \w+ timed out\b/,
  },
];

/** The first line that says that going on is of no use: what follows it are its consequences. Pure. */
export function fatalSign(lines: readonly string[]): FatalSign | undefined {
  for (const line of lines) {
    const found = patterns.find(({ test }) => test.test(line));
    if (!found) continue;
    const { scope, what, option } = found;
    return { scope, what, line: line.trim(), option: option || undefined };
  }
  return undefined;
}
