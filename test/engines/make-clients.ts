/**
 * guidellm, aiperf and lm-eval, which people measure and judge servers with, from a Python package index. They stand
 * upon the environment of vLLM, whose torch (5 GB on disk) and transformers they use, and whose `vllm bench` is the
 * fourth of them; what they need in another version is in a folder that comes before it.
 */
import { readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { engines_folder, ready_file } from './environments.ts';
import { makeVllm } from './make-vllm.ts';
import { madeOnce, NotHere, run } from './making.ts';
import { pipOf, sitePackagesOf } from './python.ts';

const programs = ['guidellm==0.8.1', 'aiperf==0.13.0', 'lm_eval[api]==0.4.13'];
/** Every package with its version, as it was when the tests passed. */
const constraints_file = join(packageRoot, 'test/engines/clients-constraints.txt');
/** aiperf's. */
const python_min = '3.11';

export async function makeClients(say: (line: string) => void): Promise<void> {
  await makeVllm(say);
  const under = join(engines_folder, 'vllm');
  const constraints = readFileSync(constraints_file, 'utf8');
  const recipe = JSON.stringify({
    programs,
    constraints,
    under: readFileSync(join(under, ready_file), 'utf8'),
  });
  await madeOnce('clients', recipe, say, async (folder) => {
    const base = join(under, 'bin/python3');
    const isEnough = `import sys; sys.exit(sys.version_info < (${python_min.replace('.', ', ')}))`;
    await run([base, '-c', isEnough]).catch(() => {
      throw new NotHere(
        `${base} is older than ${python_min}; make vllm with a later one (HPCSERVE_TEST_PYTHON)`,
      );
    });
    await run([base, '-m', 'venv', folder]);
    // What is not found here is looked for there; pip sees it in the same way.
    writeFileSync(join(sitePackagesOf(folder), 'vllm.pth'), `${realpathSync(sitePackagesOf(under))}\n`);
    say(`${programs.join(', ')} with what they need beside vLLM`);
    await pipOf(folder)('install', '--quiet', '--constraint', constraints_file, ...programs);
    const said = await run([join(folder, 'bin/guidellm'), '--version']);
    say(`${said.trim()}, which loads`);
  });
}
