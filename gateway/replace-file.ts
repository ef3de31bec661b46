import { randomUUID } from 'node:crypto';
import { rename, unlink, writeFile } from 'node:fs/promises';

/**
 * Readers see the old file or the new one, never half of one; its owner alone may read it. Two writes at a time do not
 * disturb each other; which of them stays is not said.
 */
export async function replaceFile(path: string, text: string): Promise<void> {
  const temporary = `${path}.${process.pid}.${randomUUID()}.tmp`;
  try {
    // Some filesystems say only when it is to reach the disk that a quota is full.
    await writeFile(temporary, text, { mode: 0o600, flush: true });
    await rename(temporary, path);
  } catch (error) {
    await unlink(temporary).catch(() => undefined); // the first error is the one to report
    throw error;
  }
}
