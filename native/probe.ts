/**
 * Tries the native libraries in a child process before this process loads them: a library that needs a
 * newer C library, or that was built for another CPU, ends the child and not us. The child loads the
 * libraries, picks the CPU backend and computes a small product, whose result is checked.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { makeFolders } from '../host/make-folders.ts';
import { homeFolder } from '../host/own-user.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { findNativeLibraries, type NativeLibraries } from './libraries.ts';

const versionsSchema = z.object({ ggml_version: z.string(), libllama_version: z.string() });
/** As it is kept in the user's cache. */
const cachedSchema = versionsSchema.extend({ folder: z.string() });

export interface ProbeResult extends z.infer<typeof cachedSchema> {
  /** False where an earlier probe of the same files on the same CPU was trusted. */
  ran: boolean;
}

/** Loading takes tenths of a second; on a cold parallel filesystem some seconds. */
const probe_timeout_ms = 60_000;

const passed = new Map<string, ProbeResult>();

/**
 * The child's program. It is a text of its own, so that it runs the same from sources, from dist/ and from
 * an archive. [1,2;3,4]·[5,6] by ggml_mul_mat on the CPU backend must be [17, 39].
 */
const childProgram = `
const [koffiUrl, basePath, ggmlPath, llamaPath, folder] = process.argv.slice(1);
const koffi = (await import(koffiUrl)).default;
const base = koffi.load(basePath, { global: true });
const ggml = koffi.load(ggmlPath, { global: true });
const llama = koffi.load(llamaPath, { global: true });
const P = 'void *';
const f = (library, name, result, ...args) => library.func(name, result, args);
const silence = base.symbol('ggml_time_init');
f(base, 'ggml_log_set', 'void', P, P)(silence, null);
f(ggml, 'ggml_backend_load_all_from_path', 'void', 'str')(folder);
const registry = f(ggml, 'ggml_backend_reg_by_name', P, 'str')('CPU');
if (!registry) { console.error('no CPU backend runs on this machine'); process.exit(3); }
const device = f(base, 'ggml_backend_reg_dev_get', P, P, 'size_t')(registry, 0);
const backend = f(base, 'ggml_backend_dev_init', P, P, 'str')(device, null);
const Init = koffi.struct({ mem_size: 'size_t', mem_buffer: P, no_alloc: 'bool' });
const context = f(base, 'ggml_init', P, Init)({ mem_size: 1 << 20, mem_buffer: null, no_alloc: false });
const make = f(base, 'ggml_new_tensor_2d', P, P, 'int', 'int64_t', 'int64_t');
const data = f(base, 'ggml_get_data', P, P);
const set = (t, values) => new Float32Array(koffi.view(data(t), 4 * values.length)).set(values);
const a = make(context, 0, 2, 2), b = make(context, 0, 2, 1);
set(a, [1, 2, 3, 4]); set(b, [5, 6]);
const product = f(base, 'ggml_mul_mat', P, P, P, P)(context, a, b);
const graph = f(base, 'ggml_new_graph', P, P)(context);
f(base, 'ggml_build_forward_expand', 'void', P, P)(graph, product);
const status = f(base, 'ggml_backend_graph_compute', 'int', P, P)(backend, graph);
const result = [...new Float32Array(koffi.view(data(product), 8))];
if (status !== 0 || result.join() !== '17,39') {
  console.error('a product of [1,2;3,4] and [5,6] came out as ' + result.join() + ', status ' + status);
  process.exit(4);
}
process.stdout.write(JSON.stringify({
  ggml_version: f(base, 'ggml_version', 'str')(),
  libllama_version: f(llama, 'llama_version', 'str')(),
}));
`;

/**
 * @param folder as in findNativeLibraries.
 * @throws HpcserveError E_NATIVE_LIBRARY with the loader's own words (missing symbol versions, signals)
 */
export function probeNativeLibraries(folder?: string): ProbeResult {
  const libraries = findNativeLibraries(folder);
  const key = nativeIdentity(libraries);
  const known = passed.get(key) ?? readCache(key);
  if (known) {
    passed.set(key, known);
    return known;
  }
  const result: ProbeResult = { folder: libraries.folder, ...runChild(libraries), ran: true };
  passed.set(key, { ...result, ran: false });
  writeNativeCache(nativeCacheFile('probe', key), result);
  return result;
}

function runChild(libraries: NativeLibraries): z.infer<typeof versionsSchema> {
  const koffi = createRequire(import.meta.url).resolve('koffi');
  const program = ['--input-type=module', '--eval', childProgram];
  const paths = [libraries.ggml_base, libraries.ggml, libraries.llama, libraries.folder];
  try {
    const output = execFileSync(process.execPath, [...program, '--', pathToFileURL(koffi).href, ...paths], {
      encoding: 'utf8',
      timeout: probe_timeout_ms,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, LD_LIBRARY_PATH: process.env.LD_LIBRARY_PATH },
    });
    return versionsSchema.parse(JSON.parse(output));
  } catch (error) {
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `the libraries in ${libraries.folder} do not run on this machine`,
      because: explainChildFailure(error as ChildFailure),
      cause: error,
    });
  }
}

export interface ChildFailure {
  stderr?: string;
  signal?: string | null;
  status?: number | null;
  message: string;
}

export function explainChildFailure({ stderr = '', signal, status, message }: ChildFailure): string[] {
  const lines = stderr.split('\n').map((line) => line.trim());
  const missing = [...new Set(stderr.match(/\b(?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+/g))];
  const told = lines.filter((line) => /error|cannot open|version|no CPU|came out/i.test(line)).slice(0, 3);
  const because: string[] = [];
  if (missing.length > 0) because.push(`this system lacks ${missing.join(', ')}`);
  if (signal === 'SIGILL') because.push('an instruction that this CPU does not have (SIGILL)');
  else if (signal) because.push(`the probe ended by ${signal}`);
  because.push(...told);
  return because.length > 0 ? because : [`the probe ended with status ${status ?? '?'}: ${message}`];
}

/** What a result depends on: the files, the CPU, the host and the Node that loads them. */
export function nativeIdentity(libraries: NativeLibraries): string {
  const files = [libraries.ggml_base, libraries.ggml, libraries.llama].map((path) => {
    const { size, mtimeMs } = statSync(path);
    return `${path}:${size}:${mtimeMs}`;
  });
  const facts = [...files, hostname(), cpus()[0]?.model, process.version, process.env.LD_LIBRARY_PATH];
  return createHash('sha256').update(facts.join('\n')).digest('hex').slice(0, 32);
}

/** A file of the user's cache for what was found out about native libraries. */
export function nativeCacheFile(kind: 'probe' | 'kernels' | 'sets', key: string): string {
  const cache = process.env.XDG_CACHE_HOME || join(homeFolder(), '.cache');
  return join(cache, 'hpcserve', `native-${kind}`, `${key}.json`);
}

function readCache(key: string): ProbeResult | undefined {
  try {
    return {
      ...cachedSchema.parse(JSON.parse(readFileSync(nativeCacheFile('probe', key), 'utf8'))),
      ran: false,
    };
  } catch {
    // No cache, or one that was cut off or is another version's: the probe runs again, which costs tenths of a second.
    return undefined;
  }
}

/** The whole file at once. A home directory that cannot be written only means that the next process finds out again. */
export function writeNativeCache(path: string, content: object): void {
  try {
    makeFolders(dirname(path));
    const partial = `${path}.${process.pid}`;
    writeFileSync(partial, JSON.stringify(content), { mode: 0o600 });
    renameSync(partial, path);
  } catch {
    // See above.
  }
}
