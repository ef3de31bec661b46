/**
 * Routers that people put before vLLM and SGLang, from a Python package index, each in an environment of its own: two
 * of them bring modules of one name.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { type RouterName, routerReleases } from './environments.ts';
import { madeOnce, NotHere, run } from './making.ts';
import { pipOf } from './python.ts';

/** Every package that they need with its version, as it was when they were measured. */
const constraints_file = join(packageRoot, 'test/engines/routers-constraints.txt');

/** Those that can be had are made, whatever becomes of the others. @throws NotHere, with what became of those */
export async function makeRouters(say: (line: string) => void): Promise<void> {
  const failed: string[] = [];
  for (const name of Object.keys(routerReleases) as RouterName[])
    await makeRouter(name, say).catch((error: unknown) => {
      if (!(error instanceof NotHere)) throw error;
      failed.push(`${name}: ${error.message}`);
    });
  if (failed.length > 0) throw new NotHere(failed.join('\n'));
}

async function makeRouter(name: RouterName, say: (line: string) => void): Promise<void> {
  const release = `${name}==${routerReleases[name]}`;
  const recipe = JSON.stringify({ release, constraints: readFileSync(constraints_file, 'utf8') });
  await madeOnce(`routers/${name}`, recipe, say, async (folder) => {
    say(release);
    await run([process.env.HPCSERVE_TEST_PYTHON ?? 'python3', '-m', 'venv', folder]);
    await pipOf(folder)('install', '--quiet', '--constraint', constraints_file, release);
  });
}
