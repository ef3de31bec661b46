/**
 * Where real engines of others stand on this machine, for the suites that run them. `npm run engines -- NAME` makes
 * them (`test/engines/main.ts`); HPCSERVE_ENGINES names another folder, so that several checkouts may share one.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { findNvcc } from '../../.ci/compile-cuda.ts';
import { packageRoot } from '../../host/package-root.ts';
import { findProgram } from '../cluster/install.ts';

export const engines_folder: string = process.env.HPCSERVE_ENGINES ?? join(packageRoot, 'build/engines');

/** Written last, with the recipe that an environment was made by. */
export const ready_file = '.ready';

/** An engine that can be run, or what is lacking, in words for the title of a suite. */
export type Environment<Found> = { found: Found; lacking: '' } | { found?: undefined; lacking: string };

const absent = (what: string): { lacking: string } => ({ lacking: ` [skipped: ${what}]` });

/** Whether an environment was made to its end, by this recipe or any. */
export function isReady(name: string, recipe?: string): boolean {
  const file = join(engines_folder, name, ready_file);
  return existsSync(file) && (recipe === undefined || readFileSync(file, 'utf8') === recipe);
}

/** A Python that has vLLM for CPUs: HPCSERVE_TEST_PYTHON if it has one, else that of `npm run engines -- vllm`. */
export function vllmPython(): Environment<string> {
  const given = process.env.HPCSERVE_TEST_PYTHON;
  if (given !== undefined && has(given, ['vllm'])) return { found: given, lacking: '' };
  if (isReady('vllm')) return { found: join(engines_folder, 'vllm/bin/python3'), lacking: '' };
  return absent('needs vLLM for CPUs: npm run engines -- vllm, or HPCSERVE_TEST_PYTHON');
}

/** A Python that has these packages, among the one that tests are told of, that of vLLM, and the first on PATH. */
export function pythonWith(packages: readonly string[]): Environment<string> {
  const ofVllm = isReady('vllm') ? [join(engines_folder, 'vllm/bin/python3')] : [];
  const given = process.env.HPCSERVE_TEST_PYTHON;
  const found = [...(given === undefined ? [] : [given]), ...ofVllm, 'python3'].find((python) =>
    has(python, packages),
  );
  return found === undefined
    ? absent(`needs a Python with ${packages.join(', ')}: npm run engines -- vllm, or HPCSERVE_TEST_PYTHON`)
    : { found, lacking: '' };
}

/** Looked for and not imported: importing torch takes seconds. */
function has(python: string, packages: readonly string[]): boolean {
  const code = 'import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))';
  return spawnSync(python, ['-c', code, ...packages], { timeout: 20_000 }).status === 0;
}

/** The layer under which Mesa's driver is right, and its manifest in the folder of the environment. */
export const vulkan_layer = 'VK_LAYER_HPCSERVE_lavapipe';
export const vulkan_layer_manifest = 'lavapipe-layer.json';
/** npm's file of the libraries, and the folder that it was unpacked into. */
export const vulkan_package = 'libraries.tgz';
export const vulkan_libraries = 'libraries';
/** What the driver compiled, for every process of every suite: seconds for each shader. */
const vulkan_shaders = 'shaders';

/** ggml with its Vulkan backend on a driver that computes on the CPU. */
export interface VulkanDevice {
  library_dir: string;
  /** The file that `hpcserve native add vulkan --from` takes. */
  package_file: string;
  /** Of processes that compute there; the device is `Vulkan0`. ggml leaves devices out that are CPUs, unless named. */
  environment: Readonly<Record<string, string>>;
}

/** Libraries of ggml with its Vulkan backend, and a driver for them, of `npm run engines -- vulkan`. */
export function vulkanDevice(): Environment<VulkanDevice> {
  const folder = join(engines_folder, 'vulkan');
  const drivers = vulkanDrivers();
  if (!isReady('vulkan') || !existsSync(join(folder, vulkan_libraries)) || drivers.length === 0)
    return absent('needs ggml’s Vulkan backend and a driver: npm run engines -- vulkan');
  const environment = {
    GGML_VK_VISIBLE_DEVICES: '0',
    VK_ICD_FILENAMES: drivers[0]!,
    VK_INSTANCE_LAYERS: vulkan_layer,
    VK_LAYER_PATH: folder,
    MESA_SHADER_CACHE_DIR: join(folder, vulkan_shaders),
  };
  const library_dir = join(folder, vulkan_libraries);
  return { found: { library_dir, package_file: join(folder, vulkan_package), environment }, lacking: '' };
}

/** Manifests of Mesa's driver that computes on the CPU: a device on every machine. */
export function vulkanDrivers(): string[] {
  const folders = ['/usr/share/vulkan/icd.d', '/etc/vulkan/icd.d'].filter((folder) => existsSync(folder));
  return folders.flatMap((folder) =>
    readdirSync(folder)
      .filter((name) => /^lvp_icd\..*json$/.test(name))
      .map((name) => join(folder, name)),
  );
}

/** The folder for PATH with llama.cpp's server of `npm run engines -- llama-server`. */
export function llamaServerFolder(): Environment<string> {
  return isReady('llama-server')
    ? { found: join(engines_folder, 'llama-server/bin'), lacking: '' }
    : absent('needs llama.cpp’s server: npm run engines -- llama-server');
}

/** NVIDIA's compiler: one of this machine (`findNvcc`), else that of `npm run engines -- nvcc`. */
export function nvccProgram(): Environment<string> {
  const found = findNvcc() ?? (isReady('nvcc') ? nvccIn(join(engines_folder, 'nvcc')) : undefined);
  return found === undefined ? absent('needs nvcc: npm run engines -- nvcc') : { found, lacking: '' };
}

export function nvccIn(folder: string): string {
  return join(folder, 'toolkit/bin/nvcc');
}

/** apptainer on PATH, else that of `npm run engines -- apptainer`. */
export function apptainerProgram(): Environment<string> {
  const found = findProgram('apptainer');
  if (found !== undefined) return { found, lacking: '' };
  return isReady('apptainer')
    ? { found: apptainerIn(join(engines_folder, 'apptainer')), lacking: '' }
    : absent('needs apptainer: npm run engines -- apptainer');
}

export function apptainerIn(folder: string): string {
  return join(folder, 'root/usr/bin/apptainer');
}

/** Unpacked sources of a package's releases, by version, of `npm run engines -- wheels`. */
export function wheelSources(name: 'vllm' | 'sglang'): Environment<Map<string, string>> {
  const folder = join(engines_folder, 'wheels', name);
  const versions = existsSync(folder)
    ? readdirSync(folder).filter((version) => existsSync(join(folder, version, ready_file)))
    : [];
  if (versions.length === 0) return absent('needs sources of releases: npm run engines -- wheels');
  return { found: new Map(versions.map((version) => [version, join(folder, version)])), lacking: '' };
}

/** Programs of others that measure and judge servers, of `npm run engines -- clients`. */
export interface ClientTools {
  /** guidellm, aiperf and lm_eval. */
  bin: string;
  /** `vllm bench`. */
  vllm_bin: string;
}

export function clientTools(): Environment<ClientTools> {
  return isReady('clients') && isReady('vllm')
    ? {
        found: { bin: join(engines_folder, 'clients/bin'), vllm_bin: join(engines_folder, 'vllm/bin') },
        lacking: '',
      }
    : absent('needs guidellm, aiperf, vLLM and lm-eval: npm run engines -- clients');
}

/** Routers of others, by their names on the Python package index. */
export const routerReleases = { 'vllm-router': '0.1.17', 'sglang-router': '0.3.2', smg: '1.13.0' } as const;
export type RouterName = keyof typeof routerReleases;

/** The folders of programs of those that `npm run engines -- routers` made. */
export function routerFolders(): Partial<Record<RouterName, string>> {
  const found: Partial<Record<RouterName, string>> = {};
  for (const name of Object.keys(routerReleases) as RouterName[])
    if (isReady(`routers/${name}`)) found[name] = join(engines_folder, 'routers', name, 'bin');
  return found;
}

/** Folders of client SDKs: those of today, and older ones that are still in use. */
export const sdkGenerations = ['current', 'earlier'] as const;
export type SdkGeneration = (typeof sdkGenerations)[number];

/** Clients of others for JavaScript, of `npm run engines -- sdks`. */
export interface ClientSdks {
  /** The Node that they run on: some ask for a later one than we do. */
  node: string;
  /** Where programs find the packages of a generation. */
  folders: Readonly<Record<SdkGeneration, string>>;
}

export function clientSdks(): Environment<ClientSdks> {
  const folder = join(engines_folder, 'sdks');
  const folders = { current: join(folder, 'current'), earlier: join(folder, 'earlier') };
  return isReady('sdks')
    ? { found: { node: sdkNodeIn(folder), folders }, lacking: '' }
    : absent('needs clients from npm’s registry: npm run engines -- sdks');
}

export function sdkNodeIn(folder: string): string {
  return join(folder, 'current/node_modules', `node-${process.platform}-${process.arch}`, 'bin/node');
}
