import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Makes a folder for PYTHONPATH in which the probe finds a vLLM of that version.
 * @param options it has, as fields; absent: it listens on unix sockets, and what else it has is not known
 */
export async function writeVllmSources(
  folder: string,
  version: string,
  options: readonly string[] = ['uds'],
): Promise<void> {
  const entrypoints = join(folder, 'vllm/entrypoints/openai');
  const distribution = join(folder, `vllm-${version}.dist-info`);
  for (const path of [entrypoints, distribution]) await mkdir(path, { recursive: true });
  await writeFile(join(distribution, 'METADATA'), `Name: vllm\nVersion: ${version}\n`);
  await writeFile(join(folder, 'vllm/__init__.py'), '');
  const fields = options.map((name) => `    ${name}: str | None = None\n`);
  await writeFile(join(entrypoints, 'cli_args.py'), `class FrontendArgs:\n${fields.join('')}`);
}
