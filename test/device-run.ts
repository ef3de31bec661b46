/**
 * `npm test -- --vulkan [FILTER…]`: the suites of the native engine and of its worker once more, with a device that has
 * memory of its own in place of the CPU. The device is Vulkan's, and computes on the CPU as a rule (Mesa's driver,
 * `npm run engines -- vulkan`): slow, so that these runs are no part of `npm test`. On a GPU that is there, it is
 * `--device CUDA0 --libraries FOLDER`.
 */
import { nativeFolderVariable } from '../native/libraries.ts';
import { deviceSuites } from './device-suites.ts';
import { vulkanDevice } from './engines/environments.ts';
import { makeVulkan } from './engines/make-vulkan.ts';
import { NotHere } from './engines/making.ts';
import { laneAlone } from './lanes.ts';
import { runVitest } from './run-vitest.ts';

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
