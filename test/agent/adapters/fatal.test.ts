/** What engines write when they are done for, in their own words, and what is concluded; and when one that lives hangs. */
import { describe, expect, test } from 'vitest';
import { fatalSign } from '../../../agent/adapters/fatal.ts';
import { ComputeWatchdog, pulseStates } from '../../../agent/device-worker/compute/watchdog.ts';
import { EngineHealth, type HealthLook } from '../../../agent/node/engine-health.ts';

describe('last lines of engines', () => {
  // As people have reported them to the projects named.
  test.each<[string, string, 'device' | 'process']>([
    [
      'vLLM #2734',
      '(RayWorkerVllm pid=5085) [E ProcessGroupNCCL.cpp:475] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20518, OpType=ALLREDUCE, NumelIn=106496, NumelOut=106496, Timeout(ms)=1800000) ran for 1800270 milliseconds before timing out.',
      'device',
    ],
    [
      'vLLM #6042',
      '[rank0]:[E ProcessGroupNCCL.cpp:1537] [PG 2 Rank 0] Timeout at NCCL work: 2, last enqueued NCCL work: 2, last completed NCCL work: 1.',
      'device',
    ],
    [
      'vLLM #17965',
      'ERROR 09-06 04:14:11 [core.py:640] TimeoutError: RPC call to execute_model timed out.',
      'device',
    ],
    ['vLLM #9839', 'asyncio.exceptions: Engine iteration timed out. This should never happen!', 'device'],
    ['vLLM #5222', 'RuntimeError: CUDA error: uncorrectable ECC error encountered', 'device'],
    [
      'SGLang #4584',
      'RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx()`',
      'device',
    ],
    ['SGLang #3752', '[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)', 'device'],
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
  ])('is no sign: %s', (line) => {
    expect(fatalSign([line])).toBeUndefined();
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

describe('the health of an engine that lives', () => {
  const calm: HealthLook = { in_flight: 0, streams: 0, answer_bytes: 0 };
  const bounds = { health_s: 45, stall_s: 50 };
  const looks = (health: EngineHealth, list: HealthLook[]) =>
    list.map((look) => health.look(look) !== undefined);

  test('three looks within health_s, each waited for twice as long as the pause before it', () => {
    const { interval_ms, timeout_ms } = new EngineHealth(bounds);
    expect([interval_ms, timeout_ms]).toEqual([5000, 10_000]);
    expect(3 * (interval_ms + timeout_ms)).toBe(45_000);
  });

  test('checks must fail in a row', () => {
    const sick = { ...calm, failure: '/health answers 503' };
    expect(looks(new EngineHealth(bounds), [sick, sick, calm, sick, sick, sick])).toEqual([
      ...Array(5).fill(false),
      true,
    ]);
  });

  test('requests run and nothing comes: after stall_s, unless bytes or its own numbers move', () => {
    const stream = { in_flight: 1, streams: 1, answer_bytes: 7 };
    const ten = (look: HealthLook) => Array.from({ length: 11 }, () => look);
    expect(looks(new EngineHealth(bounds), ten(stream))).toEqual([...Array(10).fill(false), true]);
    const bytes = ten(stream).map((look, index) => ({ ...look, answer_bytes: index === 6 ? 8 : 7 }));
    expect(looks(new EngineHealth(bounds), bytes)).not.toContain(true);
    const activity = ten(stream).map((look, index) => ({ ...look, activity: index }));
    expect(looks(new EngineHealth(bounds), activity)).not.toContain(true);
    expect(looks(new EngineHealth(bounds), ten({ ...stream, activity: 3 }))).toContain(true);
    expect(looks(new EngineHealth(bounds), ten(calm))).not.toContain(true);
  });

  test('of a request that is not streamed only the engine’s own numbers tell', () => {
    const mixed = { in_flight: 2, streams: 1, answer_bytes: 7 };
    const many = Array.from({ length: 30 }, () => mixed);
    expect(looks(new EngineHealth(bounds), many)).not.toContain(true);
    expect(
      looks(
        new EngineHealth(bounds),
        many.map((look) => ({ ...look, activity: 1 })),
      ),
    ).toContain(true);
  });
});

describe('the watchdog of the compute thread', () => {
  const { idle, computing, loading } = pulseStates;
  /** The first tick, from 1, at which it is found stuck. */
  const found = (watchdog: ComputeWatchdog, state: number, ticks: number, beats = 1) => {
    for (let tick = 1; tick <= ticks; tick++) if (watchdog.tick(beats, state) !== undefined) return tick;
    return undefined;
  };

  test('an iteration may take stall_ms, a piece of weights twice that, a pause for ever', () => {
    expect(found(new ComputeWatchdog(10_000), computing, 100)).toBe(12); // one to see it, ten to wait
    expect(found(new ComputeWatchdog(10_000), loading, 100)).toBe(22);
    expect(found(new ComputeWatchdog(10_000), idle, 1000)).toBeUndefined();
  });

  test('where iterations are long, twenty times the longest', () => {
    const watchdog = new ComputeWatchdog(10_000);
    expect(found(watchdog, computing, 4, 1)).toBeUndefined(); // three ticks without a beat
    expect(found(watchdog, computing, 61, 2)).toBeUndefined();
    expect(found(watchdog, computing, 2, 2)).toBe(1);
  });

  test('how long weights took says nothing of iterations', () => {
    const watchdog = new ComputeWatchdog(10_000);
    expect(found(watchdog, loading, 15, 1)).toBeUndefined();
    expect(found(watchdog, computing, 100, 2)).toBe(12);
  });
});
