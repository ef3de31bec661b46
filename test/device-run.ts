/**
 * `npm test -- --vulkan [FILTER…]`: the suites of the native engine and of its worker once more, with a device that has
 * memory of its own in place of the CPU. The device is Vulkan's, and computes on the CPU as a rule (Mesa's driver,
 * `npm run engines -- vulkan`): slow, so that these runs are no part of `npm test`. On a GPU that is there, it is
 * `--device CUDA0 --libraries FOLDER`.
 */
import { nativeFolderVariable } from '../native/libraries.ts';
import { vulkanDevice } from './engines/environments.ts';
import { makeVulkan } from './engines/make-vulkan.ts';
import { NotHere } from './engines/making.ts';
import { laneAlone } from './lanes.ts';
import { runVitest } from './run-vitest.ts';

/** What runs on the device, and what each suite shows there. */
const deviceSuites: Readonly<Record<string, string>> = {
  'test/agent/engine/reference.test.ts': 'tokens and logits beside those of libllama on the same device',
  'test/agent/engine/batch-invariant.test.ts':
    'the same bits alone, in every batch, chunk, and after a prefill of what was answered',
  'test/agent/engine/sequences.test.ts': 'sequences that begin, end, share prompts, are parked and come back',
  'test/agent/engine/iteration-plans.test.ts': 'what an iteration computes is what its plan says',
  'test/agent/engine/many-shapes.test.ts': 'graphs of many shapes, one after another',
  'test/agent/engine/stage.test.ts': 'a model cut in stages computes what the whole does',
  'test/agent/pipeline/pipeline.test.ts': 'stages in a ring, and what comes of them',
  'test/agent/pipeline/refactoring.test.ts': 'pipelines that change their layout, and fail at it',
  'test/failover/moved-gpu-kv.test.ts':
    'answers that leave the device with their keys and values, and come to it',
  'test/agent/node/refactoring-gpus.test.ts': 'stages on two devices that become others while they answer',
  'test/agent/memory/device-pool.test.ts': 'KV slabs, budgets and scratch in one pool of the device',
  'test/agent/memory/weight-pool.test.ts': 'reuse, eviction and packing: tensors that stay, go, and move',
  'test/agent/streaming/': 'weights that stay in host memory, whole models and mixtures',
  'test/agent/device-worker/streamed.test.ts': 'a worker whose models are streamed',
  'test/agent/memory/load/past-cache.test.ts': 'loads past the page cache',
  'test/agent/memory/pooled-contents.test.ts': 'tensors of the pool for peers',
  'test/agent/device-worker/serving.test.ts': 'what a worker answers',
  'test/agent/device-worker/lifecycle.test.ts': 'models that are loaded, unloaded, suspended, and fail',
  'test/agent/device-worker/full-pool.test.ts': 'several models in a pool that is too small for all',
  'test/agent/device-worker/sharing.test.ts':
    'models that give way to others, rest, leave, and come back; promises where a device keeps a pace',
  'test/agent/device-worker/short-pools.test.ts': 'pools in which prompts find no room side by side',
  'test/agent/device-worker/compute/memory-pressure.test.ts':
    'requests that give way to others, and come back',
  'test/failover/worker.test.ts': 'answers that another worker began',
  'test/failover/native.test.ts': 'streams whose replica is lost go on at the letter on another',
  'test/failover/preemption.test.ts': 'requests that are moved to another device for a neighbour',
  'test/failover/defragmentation.test.ts': 'a model on two devices that moves to one',
  'test/agent/backend/device/': 'bytes, operators and kernels of a device',
  'test/agent/node/native-gpu.test.ts': 'an agent and its worker on the device',
};

/** Kernels are compiled at their first use, on the cores that compute. */
const timeout_ms = 600_000;

/** @returns the exit code: 0 where nothing failed and something ran */
export async function runOnVulkan(filters: readonly string[], say: (line: string) => void): Promise<number> {
  try {
    await makeVulkan(say);
  } catch (error) {
    if (!(error instanceof NotHere)) throw error;
    console.log(`not here: ${error.message}`);
    return 1;
  }
  const { found, lacking } = vulkanDevice();
  if (!found) throw new Error(`the device was made, and is not found:${lacking}`);
  const environment = { ...found.environment, HPCSERVE_TEST_SLOW_DEVICE: '1' };
  return runOnDevice({ name: 'Vulkan0', ...found, environment }, filters);
}

interface TestedDevice {
  /** ggml's name of it. */
  name: string;
  library_dir: string;
  environment?: Record<string, string>;
}

/** @returns the exit code: 0 where nothing failed and something ran */
export async function runOnDevice(
  { name: device, library_dir, environment: own }: TestedDevice,
  filters: readonly string[],
): Promise<number> {
  const files = Object.keys(deviceSuites).filter(
    (file) => filters.length === 0 || filters.some((filter) => file.includes(filter)),
  );
  if (files.length === 0) {
    console.log(`no suite that runs on a device matches ${filters.join(' ')}`);
    return 1;
  }
  const options = [...laneAlone.options, `--testTimeout=${timeout_ms}`, `--hookTimeout=${timeout_ms}`];
  const environment = {
    ...own,
    [nativeFolderVariable]: library_dir,
    HPCSERVE_TEST_DEVICE: device,
  };
  const { tests, failures } = await runVitest({ title: device, options }, files, { environment });
  const count = (state: string): number => tests.filter((test) => test.state === state).length;
  for (const { file, name, message } of failures) console.log(`\nfailed: ${file} › ${name}\n${message}`);
  for (const [file, shows] of Object.entries(deviceSuites)) {
    const own = tests.filter((test) => test.file.startsWith(file));
    if (own.length === 0) continue;
    const passed = own.filter(({ state }) => state === 'passed').length;
    console.log(`${`${passed} of ${own.length}`.padStart(10)}  ${file}: ${shows}`);
  }
  console.log(
    `\non ${device}: ${count('passed')} passed, ${failures.length} failed, ${count('skipped')} skipped`,
  );
  return failures.length === 0 && count('passed') > 0 ? 0 : 1;
}
