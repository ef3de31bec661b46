/**
 * NVIDIA's compiler for CUDA, of the wheels that it is published in: they are unpacked side by side into one folder, as
 * they would lie in an environment of Python. It compiles without a GPU and without a driver.
 */
import { mkdirSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { nvccIn } from './environments.ts';
import { madeOnce, run } from './making.ts';

const constraints = join(packageRoot, 'test/engines/nvcc-constraints.txt');

export async function makeNvcc(say: (line: string) => void): Promise<void> {
  const pinned = readFileSync(constraints, 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
  await madeOnce('nvcc', JSON.stringify({ pinned }), say, async (folder) => {
    say(pinned.join(' '));
    const packages = join(folder, 'packages');
    mkdirSync(packages);
    // All that they ask for is each other, and other parts of a toolkit.
    const pip = ['python3', '-m', 'pip', '--disable-pip-version-check'];
    await run([...pip, 'install', '--no-deps', '--no-compile', '--target', packages, ...pinned]);
    const [release] = readdirSync(join(packages, 'nvidia')).filter((name) => /^cu\d+$/.test(name));
    symlinkSync(join('packages/nvidia', release!), join(folder, 'toolkit'));
    await run([nvccIn(folder), '--version']);
  });
}
