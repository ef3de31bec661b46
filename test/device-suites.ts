/** The suites of `npm test -- --vulkan` and `--device` (`device-run.ts`). */

/** What runs on the device, and what each suite shows there. */
export const deviceSuites: Readonly<Record<string, string>> = {
  'test/agent/engine/reference.test.ts': 'tokens and logits beside those of libllama on the same device',
  'test/agent/engine/exact-weights.test.ts':
    'no farther from the weights in F32 on a CPU than libllama on the same device',
  'test/agent/engine/batch-invariant.test.ts':
    'the same bits alone, in every batch, chunk, and after a prefill of what was answered',
  'test/agent/engine/sequences.test.ts': 'sequences that begin, end, share prompts, are parked and come back',
  'test/agent/engine/iteration-plans.test.ts': 'what an iteration computes is what its plan says',
  'test/agent/engine/many-shapes.test.ts': 'graphs of many shapes, one after another',
  'test/agent/engine/result-memory.test.ts':
    'a batch whose results find no memory: the longest sequence ends, the others answer as alone',
  'test/agent/engine/stage.test.ts': 'a model cut in stages computes what the whole does',
  'test/agent/pipeline/pipeline.test.ts': 'stages in a ring, and what comes of them',
  'test/agent/pipeline/refactoring.test.ts': 'pipelines that change their layout, and fail at it',
  'test/failover/moved-gpu-kv.test.ts':
    'answers that leave the device with their keys and values, and come to it',
  'test/failover/pools-gpu.test.ts':
    'answers whose prompts the device has computed, handed over to it and to a CPU',
  'test/agent/node/refactoring-gpus.test.ts': 'stages on two devices that become others while they answer',
  'test/agent/memory/device-pool.test.ts': 'KV slabs, budgets and scratch in one pool of the device',
  'test/agent/memory/weight-pool.test.ts': 'reuse, eviction and packing: tensors that stay, go, and move',
  'test/agent/streaming/': 'weights that stay in host memory, whole models and mixtures',
  'test/agent/device-worker/streamed.test.ts': 'a worker whose models are streamed',
  'test/agent/memory/load/past-cache.test.ts': 'loads past the page cache',
  'test/agent/memory/load/tensor-loader.test.ts': 'files that are read through a mapping',
  'test/agent/memory/load/unit-loader.test.ts': 'what of a load the thread takes that computes',
  'test/agent/memory/pooled-contents.test.ts': 'tensors of the pool for peers',
  'test/agent/device-worker/compute-loop.test.ts': 'stages that come, load beside others, and are given up',
  'test/agent/device-worker/serving.test.ts': 'what a worker answers',
  'test/agent/device-worker/lifecycle.test.ts': 'models that are loaded, unloaded, suspended, and fail',
  'test/agent/device-worker/full-pool.test.ts': 'several models in a pool that is too small for all',
  'test/agent/device-worker/sharing.test.ts':
    'models that give way to others, rest, leave, and come back; promises where a device keeps a pace',
  'test/agent/device-worker/short-pools.test.ts': 'pools in which prompts find no room side by side',
  'test/failover/worker.test.ts': 'answers that another worker began',
  'test/failover/drain.test.ts': 'what a worker that is told to stop says to those who read',
  'test/failover/lost-device.test.ts': 'answers whose device is lost go on at another',
  'test/failover/native.test.ts': 'streams whose replica is lost go on at the letter on another',
  'test/failover/preemption.test.ts': 'requests that are moved to another device for a neighbour',
  'test/failover/defragmentation.test.ts': 'a model on two devices that moves to one',
  'test/agent/backend/device/': 'bytes, operators and kernels of a device',
  'test/agent/node/native-gpu.test.ts': 'an agent and its worker on the device',
};

/** Suites that could compute on the device too, and why they do not. */
export const notOnDevice: Readonly<Record<string, string>> = {
  'test/agent/memory/peers/peer-loads.test.ts':
    'more than seven minutes on two cores; a load from a peer places units as one from a file does',
  'test/agent/pipeline/coordinator-opening.test.ts':
    'nothing is computed in it; stage.test.ts gives memory of stages back on the device',
  'test/agent/pipeline/faults.test.ts':
    'more than seven minutes on two cores; faults are of frames, and pipeline.test.ts computes on the device',
  'test/agent/pipeline/row-transfers.test.ts':
    'nine runs of thirty answers each take far more than six minutes; refactoring.test.ts moves rows on the device',
};
