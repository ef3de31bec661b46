/**
 * What is said of a backend for accelerators whose driver or libraries are missing or too old: with libraries of this
 * name that are made here, for want of a GPU, and with those of Vulkan where they are; needs a C compiler.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { inspectBackends, runtimeModules } from '../../native/backend-needs.ts';
import { describeBackend } from '../../native/backend-words.ts';
import { librariesNeeded } from '../../native/formats/elf-needed.ts';
import { findNativeLibraries } from '../../native/libraries.ts';
import { vulkanDevice } from '../engines/environments.ts';

const needs = spawnSync('cc', ['--version']).status === 0 ? '' : ' [skipped: needs a C compiler]';
const scratch = mkdtempSync(join(tmpdir(), 'hpcserve-backends-'));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

const { found: vulkan, lacking } = vulkanDevice();

/** A shared library with these functions, linked against others that lie in `beside`. */
function library(path: string, code: string, beside?: string, names: readonly string[] = []): void {
  const linked = names.flatMap((name) => ['-l', `:${name}`]);
  const from = beside === undefined ? [] : ['-L', beside, '-Wl,--no-as-needed', ...linked];
  execFileSync('cc', ['-shared', '-fPIC', '-x', 'c', '-', '-o', path, '-x', 'none', ...from], {
    input: code,
  });
}

interface Machine {
  /** As cuDriverGetVersion says it; absent: there is no driver. */
  cuda_driver?: number;
  /** Of the kernel's module. */
  driver?: string;
  runtime: boolean;
}

/** A folder with the real libraries and one named for CUDA, and what of it a machine has. */
function made(name: string, { cuda_driver, driver, runtime }: Machine) {
  const [folder, machine, root] = ['libraries', 'machine', 'root'].map((part) => join(scratch, name, part));
  for (const path of [folder!, machine!, join(root!, 'sys/module/nvidia')])
    mkdirSync(path, { recursive: true });
  const real = findNativeLibraries().folder;
  for (const file of readdirSync(real)) symlinkSync(join(real, file), join(folder!, file));
  const names = ['libcuda.so.1', 'libcudart.so.13', 'libcublas.so.13'];
  const version = `int cuDriverGetVersion(int *version) { *version = ${cuda_driver ?? 0}; return 0; }`;
  for (const file of names)
    library(join(machine!, file), file === 'libcuda.so.1' ? version : `int in_${file.replace(/\W/g, '_')};`);
  library(join(folder!, 'libggml-cuda.so'), 'int nothing;', machine, names);
  if (cuda_driver === undefined) rmSync(join(machine!, 'libcuda.so.1'));
  if (!runtime) for (const file of names.slice(1)) rmSync(join(machine!, file));
  if (driver !== undefined) writeFileSync(join(root!, 'sys/module/nvidia/version'), `${driver}\n`);
  const environment = { ...process.env, LD_LIBRARY_PATH: machine! };
  return { folder: folder!, environment, root: root! };
}

const judged = (machine: ReturnType<typeof made>, modules: readonly string[] = []) =>
  inspectBackends(machine.folder, machine.environment, machine.root).map((one) =>
    describeBackend(one, modules),
  );

describe.skipIf(needs !== '')(`a backend for CUDA${needs}`, () => {
  test('that has all it needs: the driver and what was found', () => {
    const machine = made('whole', { cuda_driver: 13_000, driver: '580.65.06', runtime: true });
    expect(judged(machine)).toEqual([
      {
        found:
          'cuda: driver 580.65.06; CUDA up to 13.0; libcuda.so.1, libcudart.so.13, libcublas.so.13 found',
        wrong: [],
      },
    ]);
  });

  test('without its runtime: which libraries, and the module that has them', () => {
    const machine = made('bare', { cuda_driver: 13_010, driver: '580.65.06', runtime: false });
    const [words] = judged(machine, ['cuda/12.4.1', 'cuda/13.0.2', 'rocm/6.3.0']);
    expect(words).toEqual({
      found: 'cuda: driver 580.65.06; CUDA up to 13.1; libcuda.so.1 found',
      wrong: ['cuda: libcudart.so.13, libcublas.so.13 missing'],
      advice: 'load cuda/13.0.2 in the job: runtime.modules: [cuda/13.0.2] in the site config',
    });
    expect(judged(machine, ['cuda/12.4.1'])[0]!.advice).toMatch(
      /^a module with CUDA 13 in .*\(modules here: cuda\/12\.4\.1\)$/,
    );
  });

  test('on a driver that is older than its runtime', () => {
    const machine = made('old', { cuda_driver: 12_040, driver: '550.54.15', runtime: true });
    expect(judged(machine)[0]!.wrong).toEqual([
      'cuda: the driver 550.54.15 knows CUDA up to 12.4, and libcudart.so.13 needs 13.0, which a driver from 580 on has',
    ]);
  });

  test('on a node without a driver', () => {
    expect(judged(made('none', { runtime: true }))[0]).toMatchObject({
      wrong: ['cuda: libcuda.so.1 missing: the driver is not installed here'],
      advice: 'run on a node that has the device and its driver',
    });
    // No module brings a driver.
    expect(judged(made('nothing', { runtime: false }), ['cuda/13.0.2'])[0]).toEqual({
      found: 'cuda: does not load',
      wrong: [
        'cuda: libcuda.so.1 missing: the driver is not installed here',
        'cuda: libcudart.so.13, libcublas.so.13 missing',
      ],
      advice: 'run on a node that has the device and its driver',
    });
  });

  test('that is no library: the loader’s words', () => {
    const machine = made('text', { cuda_driver: 13_000, runtime: true });
    rmSync(join(machine.folder, 'libggml-cuda.so'));
    writeFileSync(join(machine.folder, 'libggml-cuda.so'), 'no library');
    expect(judged(machine)[0]!.wrong).toEqual([
      expect.stringMatching(/^cuda: .*(invalid ELF header|too short)/),
    ]);
    expect(librariesNeeded(join(machine.folder, 'libggml-cuda.so'))).toBeUndefined();
  });
});

describe.skipIf(needs !== '')(`a backend for AMD${needs}`, () => {
  test('names the driver, and the ROCm whose runtime it is linked against, whatever the other libraries count', () => {
    const names = ['libamdhip64.so.6', 'librocblas.so.4', 'libhipblas.so.2'];
    const [folder, machine, root] = ['libraries', 'machine', 'root'].map((part) =>
      join(scratch, 'hip', part),
    );
    for (const path of [folder!, machine!, join(root!, 'sys/module/amdgpu')])
      mkdirSync(path, { recursive: true });
    const real = findNativeLibraries().folder;
    for (const file of readdirSync(real)) symlinkSync(join(real, file), join(folder!, file));
    for (const file of names) library(join(machine!, file), `int in_${file.replace(/\W/g, '_')};`);
    library(join(folder!, 'libggml-hip.so'), 'int nothing;', machine, names);
    rmSync(join(machine!, 'librocblas.so.4'));
    writeFileSync(join(root!, 'sys/module/amdgpu/version'), '6.3.6\n');
    const of = { folder: folder!, environment: { ...process.env, LD_LIBRARY_PATH: machine! }, root: root! };
    expect(judged(of, ['cuda/6.0', 'rocm/4.5.2', 'rocm/6.2.1', 'rocm/6.3.0', 'rocm/7.0.0'])).toEqual([
      {
        found: 'hip: driver 6.3.6; libamdhip64.so.6, libhipblas.so.2 found',
        wrong: ['hip: librocblas.so.4 missing'],
        advice: 'load rocm/6.3.0 in the job: runtime.modules: [rocm/6.3.0] in the site config',
      },
    ]);
    expect(judged(of, ['rocm/4.5.2'])[0]!.advice).toMatch(/^a module with ROCm 6 in /);
  });
});

test('where the loader of Vulkan is missing, no toolkit is asked for', () => {
  const missing = ['libvulkan.so.1'];
  expect(
    describeBackend({ backend: 'vulkan', needed: missing, missing, driver: undefined }, [
      'cuda/1.0',
      'rocm/1.0',
    ]),
  ).toEqual({
    found: 'vulkan: does not load',
    wrong: ['vulkan: libvulkan.so.1 missing'],
    advice: expect.stringMatching(/^the Vulkan loader is a package of the nodes/),
  });
});

describe('what a library is linked against', () => {
  test.skipIf(spawnSync('readelf', ['--version']).status !== 0)('is what readelf says', () => {
    for (const path of [process.execPath, findNativeLibraries().ggml, findNativeLibraries().llama]) {
      const text = execFileSync('readelf', ['-d', path], { encoding: 'utf8' });
      const expected = [...text.matchAll(/\(NEEDED\).*\[(.*)\]/g)].map(([, name]) => name);
      expect(librariesNeeded(path)).toEqual(expected);
      expect(expected.length).toBeGreaterThan(1);
    }
  });

  test.skipIf(vulkan === undefined)(`and what of it is there${lacking}`, () => {
    const [words] = inspectBackends(vulkan!.library_dir, process.env).map((one) => describeBackend(one, []));
    expect(words).toEqual({ found: 'vulkan: libvulkan.so.1 found', wrong: [] });
  });
});

test('modules of toolkits come from the folders of MODULEPATH, by their versions', () => {
  const [one, two] = ['one', 'two'].map((name) => join(scratch, 'modules', name));
  const files = ['cuda/12.4.1', 'cuda/13.0.2.lua', 'cuda/.modulerc', 'gcc/13.2', 'rocm/6.3.0'];
  for (const file of files) {
    mkdirSync(join(one!, file, '..'), { recursive: true });
    writeFileSync(join(one!, file), '');
  }
  mkdirSync(join(two!, 'cuda'), { recursive: true });
  writeFileSync(join(two!, 'cuda/9.2'), '');
  expect(runtimeModules(`${one}:${two}:/nowhere`)).toEqual([
    'cuda/9.2',
    'cuda/12.4.1',
    'cuda/13.0.2',
    'rocm/6.3.0',
  ]);
  expect(runtimeModules(undefined)).toEqual([]);
});
