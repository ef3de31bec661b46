/**
 * ggml's libraries with the Vulkan backend, of the release that the other ones are of, and Debian's Mesa with a driver
 * that computes on the CPU: a device with memory of its own on every machine, slow and right. Beside them a layer of
 * Vulkan that this driver needs (`vulkan/lavapipe-layer.c`), and the shaders that suites compute with, compiled.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { packageRoot } from '../../host/package-root.ts';
import { nativeFolderVariable } from '../../native/libraries.ts';
import { type Installation, installMissing } from '../cluster/install.ts';
import {
  vulkan_layer,
  vulkan_layer_manifest,
  vulkan_libraries,
  vulkan_package,
  vulkanDevice,
  vulkanDrivers,
} from './environments.ts';
import { madeOnce, NotHere, run } from './making.ts';

const packages = ['mesa-vulkan-drivers', 'libvulkan1'];
const packageSchema = z.object({ optionalDependencies: z.record(z.string(), z.string()) });

/** For suites that need a device with memory of its own: made where it can be had. */
export async function ensureVulkanDevice(say: (line: string) => void): Promise<Installation> {
  if (vulkanDevice().found) return { ready: true, installed: false };
  try {
    await makeVulkan(say);
    return { ready: true, installed: true };
  } catch (error) {
    return { ready: false, missing: `a Vulkan device: ${(error as Error).message}` };
  }
}

export async function makeVulkan(say: (line: string) => void): Promise<void> {
  const platform = `linux-${process.arch}`;
  const { optionalDependencies } = packageSchema.parse(
    JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')),
  );
  const name = `@node-llama-cpp/${platform}-vulkan`;
  const release = `${name}@${optionalDependencies[`@node-llama-cpp/${platform}`]}`;
  const absent = (): string[] => (vulkanDrivers().length > 0 ? [] : ['lvp_icd.*.json']);
  const installed = await installMissing('Vulkan drivers', absent, packages, say);
  if (!installed.ready) throw new NotHere(installed.missing);
  const source = join(packageRoot, 'test/engines/vulkan/lavapipe-layer.c');
  const layer_source = readFileSync(source, 'utf8');
  const recipe = JSON.stringify({ release, layer_source, files: [vulkan_package, vulkan_libraries] });
  await madeOnce('vulkan', recipe, say, async (folder) => {
    say(release);
    await run(['npm', 'pack', release, '--pack-destination', folder, '--loglevel=error']);
    const file = readdirSync(folder).find((name) => name.endsWith('.tgz'))!;
    renameSync(join(folder, file), join(folder, vulkan_package));
    const libraries = join(folder, vulkan_libraries);
    mkdirSync(libraries);
    const platformFolder = `package/bins/${platform}-vulkan`;
    await run([
      'tar',
      '-xzf',
      join(folder, vulkan_package),
      '-C',
      libraries,
      '--strip-components=3',
      platformFolder,
    ]);
    const library = join(folder, 'liblavapipe-layer.so');
    await run([process.env.CC ?? 'cc', '-O1', '-shared', '-fPIC', '-o', library, source]);
    const layer = {
      name: vulkan_layer,
      type: 'GLOBAL',
      library_path: library,
      api_version: '1.3.0',
      implementation_version: '1',
      description: 'Buffers live as long as their device, who waits sleeps, and shaders have one loop.',
    };
    writeFileSync(
      join(folder, vulkan_layer_manifest),
      JSON.stringify({ file_format_version: '1.2.0', layer }),
    );
  });
  await compileShaders(say);
}

/** Types of matrices that suites compute with, so that each process has about as much to compile. */
const shaderTypes = [
  ['F32', 'Q8_0'],
  ['F16', 'Q4_0'],
];

/** Once, by two processes: a process has its shaders compiled one after another. */
async function compileShaders(say: (line: string) => void): Promise<void> {
  const { found, lacking } = vulkanDevice();
  if (!found) throw new Error(`the device was made, and is not found:${lacking}`);
  const compiled = join(found.environment.MESA_SHADER_CACHE_DIR!, 'compiled');
  if (existsSync(compiled)) return;
  say('the driver compiles its shaders: minutes');
  const program = join(packageRoot, 'dist/test/engines/vulkan/compile-shaders.js');
  const environment = { ...found.environment, [nativeFolderVariable]: found.library_dir };
  const processes = shaderTypes.map((types) => run([process.execPath, program, ...types], environment));
  await Promise.all(processes);
  writeFileSync(compiled, '');
  say('shaders are compiled');
}
