import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Makes a folder for PYTHONPATH in which the probe finds a vLLM of that version, which listens on unix sockets. */
export async function writeVllmSources(folder: string, version: string): Promise<void> {
  const entrypoints = join(folder, 'vllm/entrypoints/openai');
  const distribution = join(folder, `vllm-${version}.dist-info`);
  for (const path of [entrypoints, distribution]) await mkdir(path, { recursive: true });
  await writeFile(join(distribution, 'METADATA'), `Name: vllm\nVersion: ${version}\n`);
  await writeFile(join(folder, 'vllm/__init__.py'), '');
  await writeFile(join(entrypoints, 'cli_args.py'), 'class FrontendArgs:\n    uds: str | None = None\n');
}
