/** What a backend of ggml for accelerators asks of a machine, in words: what is there, what is wrong, what helps. */
import type { BackendNeeds } from './backend-needs.ts';

/** Releases of NVIDIA's driver from which on a CUDA runtime of a major version works (CUDA compatibility guide). */
const cudaDrivers: Readonly<Record<number, number>> = { 11: 450, 12: 525, 13: 580 };

export interface BackendWords {
  /** What is there, for people. */
  found: string;
  /** What is wrong, one sentence each; empty: nothing. */
  wrong: string[];
  /** What helps, where something is wrong. */
  advice?: string;
}

/** @param modules of this machine, with their versions; see `runtimeModules` */
export function describeBackend(needs: BackendNeeds, modules: readonly string[]): BackendWords {
  const { backend, needed, missing, driver, refused } = needs;
  const there = needed.filter((name) => !missing.includes(name));
  const found = [
    driver === undefined ? undefined : `driver ${driver}`,
    cudaOf(needs) === undefined ? undefined : `CUDA up to ${cudaOf(needs)}`,
    there.length > 0 ? `${there.join(', ')} found` : undefined,
  ].filter((part) => part !== undefined);
  const loads = missing.length === 0 && refused === undefined ? 'loads' : 'does not load';
  const words: BackendWords = { found: `${backend}: ${found.join('; ') || loads}`, wrong: [] };
  const ofDriver = missing.filter(isOfDriver);
  const runtime = missing.filter((name) => !isOfDriver(name));
  const old = oldDriver(needs);
  if (ofDriver.length > 0) {
    words.wrong.push(`${backend}: ${ofDriver.join(', ')} missing: the driver is not installed here`);
    words.advice = 'run on a node that has the device and its driver';
  }
  if (runtime.length > 0) {
    words.wrong.push(`${backend}: ${runtime.join(', ')} missing`);
    words.advice ??= backend === 'vulkan' ? vulkanAdvice : adviceFor(needs, modules);
  }
  if (old !== undefined) {
    words.wrong.push(`${backend}: ${old}`);
    words.advice =
      'a newer driver is the operator’s; until then a ggml that was built for the CUDA that it knows (native.library_dir), or hpcserve native add vulkan';
  }
  if (refused !== undefined && words.wrong.length === 0) {
    words.wrong.push(`${backend}: ${refused}`);
    words.advice =
      'hpcserve native add, for another backend, or a ggml of the site’s own (native.library_dir)';
  }
  return words;
}

/** Libraries that come with the driver, and not with a toolkit. */
function isOfDriver(name: string): boolean {
  return /^(libcuda|libnvidia-\w+)\.so/.test(name);
}

function cudaOf({ cuda_driver }: BackendNeeds): string | undefined {
  if (cuda_driver === undefined) return undefined;
  return `${Math.floor(cuda_driver / 1000)}.${Math.floor((cuda_driver % 1000) / 10)}`;
}

/** In words, where the driver is older than what the backend is linked against. */
function oldDriver(needs: BackendNeeds): string | undefined {
  const { needed, cuda_driver, driver } = needs;
  const runtime = needed.find((name) => /^libcudart\.so\.\d+$/.test(name));
  const major = Number(runtime?.split('.').at(-1));
  if (runtime === undefined || cuda_driver === undefined || Math.floor(cuda_driver / 1000) >= major)
    return undefined;
  const from = cudaDrivers[major];
  const name = driver === undefined ? 'the driver' : `the driver ${driver}`;
  const needsDriver = from === undefined ? '' : `, which a driver from ${from} on has`;
  return `${name} knows CUDA up to ${cudaOf(needs)}, and ${runtime} needs ${major}.0${needsDriver}`;
}

const vulkanAdvice =
  'the Vulkan loader is a package of the nodes (libvulkan1, vulkan-loader); or its folder in LD_LIBRARY_PATH of runtime.environment';

/** Toolkits number their other libraries as they please: the runtime's number is theirs. */
function adviceFor({ needed, missing }: BackendNeeds, modules: readonly string[]): string {
  const runtime = needed.find((name) => /^lib(cudart|amdhip64)\.so\.\d+$/.test(name));
  const major = runtime?.split('.so.')[1];
  const fitting = modules.filter(
    (module) =>
      runtime !== undefined &&
      isCuda(runtime) === /^cuda/i.test(module) &&
      module.split('/')[1]?.split('.')[0] === major,
  );
  if (fitting.length > 0)
    return `load ${fitting.at(-1)} in the job: runtime.modules: [${fitting.at(-1)}] in the site config`;
  const toolkit = (missing.some(isCuda) ? 'CUDA' : 'ROCm') + (major === undefined ? '' : ` ${major}`);
  const others = modules.length > 0 ? ` (modules here: ${modules.join(', ')})` : '';
  return `a module with ${toolkit} in runtime.modules of the site config, or its folder in LD_LIBRARY_PATH of runtime.environment${others}`;
}

function isCuda(library: string): boolean {
  return /^lib(cudart|cublas|cublasLt|cuda|nvrtc|cufft|curand)\./.test(library);
}
