/** Checks of this machine and of the folders: Node, addons, state folder, disk, clock, paths of sockets. */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { gpuLibraries } from '../../control/plan/native-devices.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { isSharedFilesystem, mountTypeOf, readMounts } from '../../host/mounts.ts';
import { packageRoot } from '../../host/package-root.ts';
import { compiledFile } from '../../host/programs.ts';
import { inspectBackends, runtimeModules } from '../../native/backend-needs.ts';
import { describeBackend } from '../../native/backend-words.ts';
import { cpuKernelSets } from '../../native/cpu-kernel-sets.ts';
import { hybridGemmPath } from '../../native/cuda/library-file.ts';
import { gpuBackendsIn, listAccelerators } from '../../native/list-devices.ts';
import { probeNativeLibraries } from '../../native/probe.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { quotaAdvice, systemMessage } from '../../spec/errors/system-error.ts';
import { formatBytes } from '../format/quantities.ts';
import { type CheckResult, failed, passed, skipped, warning } from './check.ts';

/** Below this a deployment's logs and ledger may fill the disk. */
const leastFree_bytes = 1024 ** 3;
/** sun_path of Linux holds 108 bytes with the final NUL. */
const socketPath_bytes = 107;
/** Longest file name that is put into a runtime folder for sockets. */
const socketName_bytes = 48;
const probe_bytes = 4096;
/** Clocks that differ by more make certificates and time limits look wrong. */
const clockSkew_ms = 5_000;
const librariesCheck = 'libraries of native devices';

export function checkNode(): CheckResult {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const found = `Node ${process.versions.node} at ${process.execPath}`;
  return major > 20 || (major === 20 && minor >= 17)
    ? passed('node', found)
    : failed(
        'node',
        `${found}; 20.17 or later is needed`,
        'load a newer module, or unpack Node from nodejs.org',
      );
}

/** The programs that run in jobs are built: an unpacked archive has them, a clone needs a build. */
export function checkPrograms(): CheckResult {
  const missing = ['agent', 'gateway'].filter((room) => !existsSync(compiledFile(`${room}/main.js`)));
  return missing.length === 0
    ? passed('programs', `agent and gateway in ${join(packageRoot, 'dist')}`)
    : failed('programs', `not built: ${missing.join(', ')}`, `npm --prefix ${packageRoot} run build`);
}

/** SQLite for the ledger is the addon that a change of Node breaks. */
export async function checkAddons(): Promise<CheckResult> {
  try {
    const { default: Database } = await import('better-sqlite3');
    const database = new Database(':memory:');
    const { version } = database.prepare('SELECT sqlite_version() AS version').get() as { version: string };
    database.close();
    return passed('addons', `SQLite ${version}`);
  } catch (error) {
    return failed(
      'addons',
      (error as Error).message.split('\n')[0] ?? 'better-sqlite3 cannot be loaded',
      `npm --prefix ${packageRoot} ci`,
    );
  }
}

/**
 * The native engine's libraries. Where jobs run on this machine they are tried; login nodes, which are often too old
 * for them, only look for them.
 */
export function checkNativeLibrary({ site }: LoadedSite): CheckResult {
  const check = 'native libraries';
  const folder = site.native.library_dir;
  if (site.kind === 'local') {
    try {
      const { folder: tried, ggml_version } = probeNativeLibraries(folder);
      return passed(check, `ggml ${ggml_version} of ${tried} computes here`);
    } catch (error) {
      const { message, because } = HpcserveError.from(error);
      return warning(
        check,
        [message, ...because].join('; '),
        'use engines that are wrapped, or name a ggml that was built for this system in native.library_dir of the site config',
      );
    }
  }
  const name = `@node-llama-cpp/linux-${process.arch}`;
  const packaged = join(packageRoot, 'node_modules', name);
  if (folder) return passed(check, `the site's own: ${folder}; probed on compute nodes`);
  return existsSync(packaged)
    ? passed(check, `${packaged}; probed on compute nodes`)
    : warning(
        check,
        `${name} is not installed; only wrapped engines can run`,
        `npm --prefix ${packageRoot} ci`,
      );
}

/**
 * Accelerators that the native engine may compute on, with the driver and the libraries that its backends need: nothing
 * is said where it has none. Where jobs run on this machine, or this is a job of the site, all of it is tried.
 */
export function checkAccelerators(
  { site }: LoadedSite,
  environment: Readonly<Record<string, string | undefined>>,
): CheckResult[] {
  const check = 'native devices';
  const folder = gpuLibraries(site, environment);
  if (folder === undefined) return [];
  const backends = gpuBackendsIn(folder).join(', ');
  if (site.kind !== 'local' && environment.SLURM_JOB_ID === undefined)
    return [passed(check, `backends for ${backends}; devices are looked for in the job`)];
  try {
    const modules = runtimeModules(environment.MODULEPATH);
    const told = inspectBackends(folder, { ...environment }).map((needs) => describeBackend(needs, modules));
    const libraries = told.map(({ found, wrong, advice }) =>
      wrong.length === 0
        ? passed(librariesCheck, found)
        : warning(librariesCheck, [found, ...wrong].join('; '), advice ?? 'hpcserve native list'),
    );
    const devices = listAccelerators(folder, { ...environment });
    const names = devices.map(
      ({ name, description, memory_total_bytes }) =>
        `${name}: ${description}, ${formatBytes(memory_total_bytes)}`,
    );
    return [
      devices.length > 0
        ? passed(check, names.join('; '))
        : warning(
            check,
            `backends for ${backends}, and they find no device here`,
            told.find(({ advice }) => advice !== undefined)?.advice ??
              'see whether this machine has such a device, and its driver sees it (nvidia-smi, rocm-smi, vulkaninfo)',
          ),
      ...libraries,
    ];
  } catch (error) {
    const { message, because } = HpcserveError.from(error);
    return [warning(check, [message, ...because].join('; '), 'hpcserve native add, for another backend')];
  }
}

/** Our own products for CPUs: said of this machine, whose CPU may not be that of the nodes. */
export async function checkCpuKernels(): Promise<CheckResult> {
  const check = 'CPU kernels';
  if (process.arch !== 'x64')
    return skipped(check, `there are none of our own for ${process.arch}; ggml's serve`);
  const kernels = await cpuKernelSets();
  const names = (sets: readonly string[]): string => sets.join(', ') || 'none';
  return kernels
    ? passed(
        check,
        `compiled for ${names(kernels.compiled)}; this CPU has ${names(kernels.sets)}; engines multiply by these or by ggml's, whichever was faster on their node`,
      )
    : skipped(check, "not built, since there was no C compiler; engines multiply by ggml's");
}

/** Products for GPUs whose weights stay in host memory: asked of the file alone, which needs a driver for more. */
export function checkHybridGemm(path = hybridGemmPath): CheckResult {
  const check = 'CUDA kernels';
  return existsSync(path)
    ? passed(check, 'HybridGEMM is compiled, for sm_80, sm_90 and later')
    : skipped(
        check,
        'HybridGEMM was not compiled, since the build found no nvcc (a CUDA toolkit; NVCC names it)',
      );
}

/** RDMA between nodes, where KV may go in the clear; said of this machine, whose libfabric may not be that of nodes. */
export async function checkFabric({ site }: LoadedSite): Promise<CheckResult[]> {
  if (site.kind === 'local' || !site.network.private_fabric) return [];
  const check = 'libfabric';
  const { fabricAbsence, fabricVersion } = await import('../../native/fabric/fabric.ts');
  const absence = fabricAbsence();
  return [
    absence === undefined
      ? passed(check, `${fabricVersion()}; between nodes that have it, KV goes by RDMA`)
      : skipped(check, `${absence}; KV goes by sendfile, and by RDMA between nodes that have libfabric`),
  ];
}

/** Engines that answer some of their paths without a key, and are therefore run in a network namespace of their own. */
const engines_apart = ['vllm', 'tgi', 'ollama'] as const;

/** Whether such namespaces can be made; said of this machine, since compute nodes mostly have the same system. */
export function checkEngineNetworks({ site }: LoadedSite): CheckResult[] {
  const engines = engines_apart.filter((name) => site.runtime.engines?.[name]);
  if (engines.length === 0) return [];
  const argv = ['--map-root-user', '--net', '--', 'true'];
  const { status, error, stderr } = spawnSync('unshare', argv, { encoding: 'utf8', timeout: 10_000 });
  const names = engines.join(', ');
  if (status === 0) return [passed('networks of engines', `${names} can run in a network of its own here`)];
  const why = error?.message ?? stderr.trim();
  return [
    warning(
      'networks of engines',
      `this machine permits no network of an engine's own (${why}): where nodes do not either, vLLM without --uds and TGI answer some paths, such as /invocations, to anybody on the node, and Ollama is not started`,
      'ask for user namespaces (sysctl user.max_user_namespaces), or use a vLLM that has --uds',
    ),
  ];
}

export function checkStateFolder({ layout, site, path }: LoadedSite): CheckResult[] {
  const { root } = layout;
  const probe = join(root, `.${randomBytes(6).toString('hex')}.probe`);
  const results: CheckResult[] = [];
  try {
    makeFolders(root);
    const before = Date.now();
    // Some bytes, and on the disk: a full quota may well take an empty file.
    writeFileSync(probe, Buffer.alloc(probe_bytes), { flag: 'wx', mode: 0o600, flush: true });
    const skew = Math.max(0, before - statSync(probe).mtimeMs, statSync(probe).mtimeMs - Date.now());
    results.push(
      passed('state folder', `${root} can be written`),
      skew <= clockSkew_ms
        ? passed('clock', `this host and the file server agree within ${Math.ceil(skew)} ms`)
        : warning(
            'clock',
            `this host and the file server differ by ${Math.round(skew)} ms`,
            'tell the operator; check with: timedatectl',
          ),
    );
  } catch (error) {
    return [
      failed(
        'state folder',
        `${root}: ${systemMessage(error)}`,
        quotaAdvice(error)[0] ?? `mkdir -p ${root}, or change state_dir in ${path}`,
      ),
    ];
  } finally {
    rmSync(probe, { force: true });
  }
  const mode = statSync(root).mode & 0o777;
  results.push(
    (mode & 0o077) === 0
      ? passed('state folder is private', `${root} is 0${mode.toString(8)}`)
      : failed(
          'state folder is private',
          `${root} is 0${mode.toString(8)}: others can read keys or logs`,
          `chmod 700 ${root}`,
        ),
  );
  const filesystem = mountTypeOf(root, readMounts());
  if (site.kind === 'slurm')
    results.push(
      isSharedFilesystem(filesystem)
        ? passed('state folder is shared', `${filesystem}`)
        : warning(
            'state folder is shared',
            `${root} is on ${filesystem ?? 'an unknown filesystem'}, which compute nodes may not see`,
            `set state_dir in ${path} to a folder that all nodes mount`,
          ),
    );
  const { bavail, bsize } = statfsSync(root);
  const free = bavail * bsize;
  results.push(
    free >= leastFree_bytes
      ? passed('disk space', `${formatBytes(free)} free for state`)
      : failed(
          'disk space',
          `${formatBytes(free)} free in ${root}`,
          `free space, or change state_dir in ${path}`,
        ),
  );
  return results;
}

export function checkSocketPaths(): CheckResult {
  const length = Buffer.byteLength(tmpdir()) + 1 + socketName_bytes;
  return length <= socketPath_bytes
    ? passed('socket paths', `${tmpdir()} leaves room: ${length} of ${socketPath_bytes} bytes`)
    : failed(
        'socket paths',
        `${tmpdir()} is too long: sockets would need ${length} of ${socketPath_bytes} bytes`,
        'export TMPDIR=/tmp',
      );
}

export function checkScratch({ site }: LoadedSite, expand: (text: string) => string): CheckResult[] {
  const results: CheckResult[] = [];
  for (const key of ['models_dir', 'scratch_dir', 'cache_dir'] as const) {
    const value = site[key];
    if (value === undefined) continue;
    const path = expand(value);
    results.push(
      existsSync(path)
        ? passed(key, path)
        : key === 'cache_dir' && existsSync(dirname(path))
          ? passed(key, `${path} will be made`)
          : warning(key, `${path} does not exist`, `mkdir -p ${path}`),
    );
  }
  return results;
}
