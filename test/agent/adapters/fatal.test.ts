/** What engines write when they are done for, in their own words, and what is concluded. */
import { describe, expect, test } from 'vitest';
import { fatalSign } from '../../../agent/adapters/fatal.ts';
import { firstCause } from '../../../agent/adapters/first-cause.ts';

const failed = 'RuntimeError: CUDA error: uncorrectable ECC error encountered';

/** Something that was waited for: it may have been another rank that ended, or a long computation. */
const unanswered: readonly [who: string, what: RegExp, line: string][] = [
  [
    'vLLM #2734',
    /collective operation/,
    '(RayWorkerVllm pid=5085) [E ProcessGroupNCCL.cpp:475] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20518, OpType=ALLREDUCE, NumelIn=106496, NumelOut=106496, Timeout(ms)=1800000) ran for 1800270 milliseconds before timing out.',
  ],
  [
    'vLLM #6042',
    /collective operation/,
    '[rank0]:[E ProcessGroupNCCL.cpp:1537] [PG 2 Rank 0] Timeout at NCCL work: 2, last enqueued NCCL work: 2, last completed NCCL work: 1.',
  ],
  [
    'vLLM #17965',
    /did not answer/,
    'ERROR 09-06 04:14:11 [core.py:640] TimeoutError: RPC call to execute_model timed out.',
  ],
  [
    'verl #6583',
    /did not answer/,
    '(EngineCore) ERROR [core.py:1138] TimeoutError: RPC call to sample_tokens timed out.',
  ],
  [
    'vLLM #9839',
    /did not answer/,
    'asyncio.exceptions: Engine iteration timed out. This should never happen!',
  ],
  [
    'SGLang #3752',
    /did not answer/,
    '[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)',
  ],
  [
    'PyTorch',
    /links ranks/,
    'torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.19.3',
  ],
  [
    'PyTorch #75512',
    /broke the connection/,
    'RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.0.30]:28048',
  ],
  [
    'vLLM #6775',
    /broke the connection/,
    '[rank0]: RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error',
  ],
];

describe('last lines of engines', () => {
  // As people have reported them to the projects named.
  test.each<[string, string, 'device' | 'process']>([
    ['vLLM #5222', 'RuntimeError: CUDA error: uncorrectable ECC error encountered', 'device'],
    [
      'SGLang #4584',
      'RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx()`',
      'device',
    ],
    [
      'SGLang #1093',
      '[PG 3 Rank 7] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered. CUDA kernel errors might be asynchronously reported at some other API call',
      'device',
    ],
    ['llama.cpp #16953', 'CUDA error: an illegal memory access was encountered', 'device'],
    ['llama.cpp #27749', '53.26.801.941 E CUDA error: an illegal memory access was encountered', 'device'],
    [
      'llama.cpp #3896',
      'Memory access fault by GPU node-1 (Agent handle: 0x55c2bca3a160) on address 0x7fe03c665000. Reason: Page not present or supervisor privilege.',
      'device',
    ],
    [
      'PyTorch, nvidia-resiliency-ext #18',
      'torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:133, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5',
      'device',
    ],
    ['the same', 'RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable', 'device'],
    [
      'vLLM #27508',
      '(EngineCore_DP0 pid=8884) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 140.75 MiB is free.',
      'process',
    ],
    [
      'llama.cpp #16725',
      'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3040.00 MiB on device 0: cudaMalloc failed: out of memory',
      'process',
    ],
    ['llama.cpp', 'CUDA error: out of memory', 'process'],
    ['ggml', '/build/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error', 'device'],
    ['ggml', '/build/ggml/src/ggml-cuda/../ggml-cuda/common.cuh:98: ROCm error', 'device'],
    ['ggml', 'MUSA error: unspecified launch failure', 'device'],
    ['argparse', 'vllm: error: unrecognized arguments: --no-such-thing', 'process'],
    [
      'argparse',
      "api_server: error: argument --model-format: invalid choice: 'q4' (choose from 'hf', 'awq')",
      'process',
    ],
    ['clap', "error: unexpected argument '--no-such-thing' found", 'process'],
    ['typer', '│ No such option: --no-such-thing                                              │', 'process'],
    ['click', "Error: No such option '--no-such-thing'.", 'process'],
    ['llama.cpp', 'error: invalid argument: --no-such-thing', 'process'],
  ])('%s: %s', (_, line, scope) => {
    expect(
      fatalSign(['INFO 05-05 12:36:59 all is well', `  ${line}  `, 'Aborted (core dumped)']),
    ).toMatchObject({
      scope,
      line,
    });
  });

  test.each([
    'Aborted (core dumped)',
    'KeyboardInterrupt: terminated',
    'out of memory, sorry',
    'INFO: 127.0.0.1:52406 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    'ValueError: unsupported model architecture',
    'WARNING 10-12 22:31:22 shm_broadcast.py:396] No available block found in 60 second. ',
    'NCCL INFO comm 0x55fb6f3ce680 rank 0 nranks 4 cudaDev 0 nvmlDev 2 busId 41000 - Init COMPLETE',
    'ggml_cuda_init: found 2 CUDA devices:',
    ...unanswered.map(([, , line]) => line),
  ])('is no sign: %s', (line) => {
    expect(fatalSign([line])).toBeUndefined();
  });

  test.each(unanswered)('%s: %s is said, and condemns nothing', (_, what, line) => {
    const cause = firstCause(['INFO 05-05 12:36:59 all is well', line, 'Aborted (core dumped)']);
    expect(cause!.what).toMatch(what);
    expect(cause!.scope).toBeUndefined();
    // Where a device failed, another line says so: before, as it waits for what does not come, or after.
    for (const lines of [
      [failed, line],
      [line, failed],
    ])
      expect(firstCause(lines)!.scope).toBe('device');
  });

  test('what ggml says before it aborts counts, not the abort', () => {
    const abort = '/build/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error';
    const of = (reason: string) =>
      fatalSign([`CUDA error: ${reason}`, '  current device: 0, in function f at x.cu:1', '  g()', abort]);
    expect(of('out of memory')).toMatchObject({ scope: 'process', line: 'CUDA error: out of memory' });
    expect(of('uncorrectable ECC error encountered')!.what).toContain('cannot be corrected');
    expect(of('unspecified launch failure')!.line).toBe('CUDA error: unspecified launch failure');
    // Earlier versions abort in their first line.
    const earlier = fatalSign([abort, 'CUDA error: an illegal memory access was encountered']);
    expect(earlier!.line).toBe('CUDA error: an illegal memory access was encountered');
    expect(fatalSign([abort])).toMatchObject({ scope: 'device', line: abort });
  });

  test('the first sign is the cause of the others', () => {
    const lines = [
      'torch.OutOfMemoryError: CUDA out of memory.',
      'NCCL error: remote process exited',
      'CUDA error: x',
    ];
    expect(fatalSign(lines)!.scope).toBe('process');
    expect(fatalSign(lines.toReversed())!.scope).toBe('device');
  });
});
