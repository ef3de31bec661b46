import { rename, writeFile } from 'node:fs/promises';

/** Readers see the old file or the new one, never half of one; its owner alone may read it. */
export async function replaceFile(path: string, text: string): Promise<void> {
  const temporary = `${path}.${process.pid}.tmp`;
  await writeFile(temporary, text, { mode: 0o600 });
  await rename(temporary, path);
}
