/**
 * Compiles native/kernels for every instruction set that the compiler knows, into one library that chooses at run time.
 * `node dist/.ci/compile-kernels.js`, into dist/native/kernels. Nothing is compiled anew that did not change.
 *
 * Without a C compiler there is no library, and ggml's kernels serve alone: the build goes on and says so.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { cpuKernelsFile } from '../native/cpu-kernels-file.ts';
import { runCompiler } from './c-library.ts';

const sources = join(packageRoot, 'native/kernels');
const common = ['-std=gnu11', '-O3', '-fPIC', '-fvisibility=hidden', '-Wall', '-Wextra'];
const avx2 = ['-mavx2', '-mfma', '-mf16c'];
const avx512_vnni = [...avx2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq', '-mavx512vnni'];
const avx512_bf16 = [...avx512_vnni, '-mavx512bf16'];
/** All CPUs with tiles have PREFETCHW. */
const amx_bf16 = [...avx512_bf16, '-mprfchw', '-mamx-tile', '-mamx-bf16'];

/** Files of one instruction set, which an old compiler may not know. */
interface InstructionSet {
  name: string;
  files: readonly string[];
  flags: readonly string[];
  /** Tells the other files that it is there. */
  define: string;
}

const optional: readonly InstructionSet[] = [
  {
    name: 'AVX-512 VNNI',
    files: ['product-avx512-vnni.c', 'product-avx512-floats.c', 'attention-avx512.c'],
    flags: avx512_vnni,
    define: 'HK_WITH_AVX512_VNNI',
  },
  {
    name: 'AVX-512 BF16',
    files: ['product-avx512-bf16.c', 'bf16-rate.c'],
    flags: avx512_bf16,
    define: 'HK_WITH_AVX512_BF16',
  },
  {
    name: 'AMX-BF16',
    files: ['product-amx-bf16.c', 'product-one-row.c', 'activations-amx.c'],
    flags: amx_bf16,
    define: 'HK_WITH_AMX_BF16',
  },
];
/** What every CPU with AVX2 can run, or that chooses. */
const always: readonly { file: string; flags: readonly string[] }[] = [
  { file: 'product-avx2.c', flags: avx2 },
  { file: 'product-avx2-bytes.c', flags: avx2 },
  { file: 'attention-avx2.c', flags: avx2 },
  { file: 'pack.c', flags: avx2 },
  { file: 'pack-super.c', flags: avx2 },
  { file: 'weights-check.c', flags: avx2 },
  { file: 'rows.c', flags: avx2 },
  { file: 'activations.c', flags: avx2 },
  { file: 'activations-bytes.c', flags: avx2 },
  { file: 'dispatch.c', flags: [] },
  { file: 'stream-copy.c', flags: [] },
  { file: 'ggml-operator.c', flags: [] },
  { file: 'expert-operators.c', flags: [] },
  { file: 'product-exact.c', flags: avx2 },
  { file: 'ggml-layout.c', flags: [] },
  { file: 'attention-operator.c', flags: [] },
  { file: 'log-errors.c', flags: [] },
];

/**
 * @param target folder of the library, which is made
 * @param compiler as in the environment variable CC
 * @returns what was left out, and why; nothing where all is there
 */
export function compileKernels(target: string, compiler: string): string[] {
  const library = join(target, cpuKernelsFile);
  const remove = (): void => rmSync(library, { force: true });
  if (process.arch !== 'x64') {
    remove();
    return [`there are no kernels of our own for ${process.arch}: ggml's serve`];
  }
  const { status, stdout } = spawnSync(compiler, ['--version'], { encoding: 'utf8' });
  if (status !== 0) {
    remove();
    return [`no C compiler (${compiler} does not run): ggml's kernels serve alone`];
  }
  mkdirSync(target, { recursive: true });
  const stamp = join(target, 'compiled');
  const wanted = hashOf(stdout);
  if (existsSync(library) && existsSync(stamp)) {
    const [hash, ...left_out] = readFileSync(stamp, 'utf8').trimEnd().split('\n');
    if (hash === wanted) return left_out;
  }
  const work = mkdtempSync(join(target, 'work-'));
  try {
    const left_out = compileInto(work, compiler, library);
    writeFileSync(stamp, `${[wanted, ...left_out].join('\n')}\n`);
    return left_out;
  } catch (error) {
    remove();
    return [`${(error as Error).message}: ggml's kernels serve alone`];
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** @throws Error in the compiler's words */
function compileInto(work: string, compiler: string, library: string): string[] {
  const objects: string[] = [];
  const defines: string[] = [];
  const left_out: string[] = [];
  const compile = (file: string, flags: readonly string[]): void => {
    const object = join(work, `${file}.o`);
    runCompiler(compiler, [...common, ...flags, ...defines, '-c', join(sources, file), '-o', object]);
    objects.push(object);
  };
  for (const { name, files, flags, define } of optional) {
    const before = objects.length;
    try {
      for (const file of files) compile(file, flags);
      defines.push(`-D${define}`);
    } catch (error) {
      objects.length = before;
      left_out.push(`no kernels for ${name}: ${(error as Error).message}`);
    }
  }
  for (const { file, flags } of always) compile(file, flags);
  const linked = join(work, cpuKernelsFile);
  runCompiler(compiler, ['-shared', '-o', linked, ...objects]);
  renameSync(linked, library);
  return left_out;
}

function hashOf(compilerVersion: string): string {
  const hash = createHash('sha256').update(compilerVersion);
  const own = readFileSync(join(packageRoot, '.ci/compile-kernels.ts'));
  hash.update(own);
  for (const file of readdirSync(sources).sort()) hash.update(file).update(readFileSync(join(sources, file)));
  return hash.digest('hex');
}
