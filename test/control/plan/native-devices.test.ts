/** When the native engine is one that plans may take for GPUs: by names of files, which a login node can look at. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { readsHostWeights } from '../../../control/plan/native-devices.ts';
import { offersOf } from '../../../control/plan/site-offers.ts';
import {
  addedLibraries,
  packagedFolder,
  withAddedLibraries,
} from '../../../control/state/native-libraries.ts';
import { type SiteConfig, siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-native-devices-'));
afterAll(() => rmSync(folder, { recursive: true }));

function libraries(name: string, ...files: string[]): string {
  const path = join(folder, name);
  mkdirSync(path, { recursive: true });
  for (const file of ['libggml-base.so', ...files]) writeFileSync(join(path, file), '');
  return path;
}

const site = (library_dir?: string): SiteConfig =>
  siteSchema.parse({
    name: 'lab',
    kind: 'slurm',
    native: library_dir === undefined ? {} : { library_dir },
    node_kinds: [
      { name: 'gpus', count: 2, cpus: 8, devices: [{ kind: 'gpu', model: 'A100', count: 4, memory_gb: 40 }] },
    ],
  });
const native = (config: SiteConfig, environment = {}) =>
  offersOf(config, undefined, environment)[0]!.engines.native;

describe('the native engine on GPUs', () => {
  test('is offered where its libraries have a backend for them', () => {
    for (const backend of ['cuda', 'vulkan', 'hip'])
      expect(native(site(libraries(backend, `libggml-${backend}.so`)))).toMatchObject({ available: true });
    libraries('scratch/own', 'libggml-hip.so.0');
    const environment = { SCRATCH: join(folder, 'scratch') };
    expect(native(site('$SCRATCH/own'), environment)).toMatchObject({ available: true });
  });

  test('reads weights in host memory where the build brought the library for it, with CUDA alone', () => {
    const library = join(libraries('built', 'libhybrid.so'), 'libhybrid.so');
    const cuda = libraries('with-cuda', 'libggml-cuda.so');
    expect(readsHostWeights(cuda, library)).toBe(true);
    expect(readsHostWeights(cuda, join(folder, 'not-built.so'))).toBe(false);
    expect(readsHostWeights(libraries('with-vulkan', 'libggml-vulkan.so'), library)).toBe(false);
  });

  test('is not where they have none, are not there, or nobody named any; it says what brings one', () => {
    const none = { available: false, because: expect.stringMatching(/hpcserve native add cuda/) };
    expect(native(site())).toEqual(none);
    expect(native(site(join(folder, 'absent')))).toEqual(none);
    expect(native(site(libraries('cpus', 'libggml-cpu-zen4.so')))).toEqual(none);
  });

  test('takes what was added beside the state, unless the site config names a folder', () => {
    const layout = stateLayout(folder, 'lab');
    const { folder: added, link } = addedLibraries(layout);
    expect(withAddedLibraries(site(), layout)).toEqual(site());
    mkdirSync(join(added, 'cuda-1'), { recursive: true });
    symlinkSync('cuda-1', link);
    expect(withAddedLibraries(site(), layout).native.library_dir).toBe(join(added, 'cuda-1'));
    expect(withAddedLibraries(site('/opt/ggml'), layout).native.library_dir).toBe('/opt/ggml');
  });

  test('takes what came with hpcserve, unless something was added or named', () => {
    const layout = stateLayout(join(folder, 'packaged'), 'lab');
    const root = join(folder, 'installed');
    expect(withAddedLibraries(site(), layout, root)).toEqual(site());
    const packaged = packagedFolder(root, 'cuda');
    mkdirSync(packaged, { recursive: true });
    writeFileSync(join(packaged, 'libggml-cuda.so'), '');
    const found = withAddedLibraries(site(), layout, root);
    expect(found.native.library_dir).toBe(packaged);
    expect(native(found)).toMatchObject({ available: true });
    const { folder: added, link } = addedLibraries(layout);
    mkdirSync(join(added, 'vulkan-1'), { recursive: true });
    symlinkSync('vulkan-1', link);
    expect(withAddedLibraries(site(), layout, root).native.library_dir).toBe(join(added, 'vulkan-1'));
    expect(withAddedLibraries(site('/opt/ggml'), layout, root).native.library_dir).toBe('/opt/ggml');
  });
});
