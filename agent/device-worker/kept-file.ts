/** Small files of what a worker learned, for the next one: whole or not at all, and for their owner alone. */
import { createHash } from 'node:crypto';
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { dirname } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';

/** So much of a model file tells it apart: its header with all names and shapes, and its first weights. */
const fingerprint_bytes = 1024 * 1024;

/** Replaces the file: readers see the old one or the new one. @throws where the folder cannot be written */
export function writeKeptFile(path: string, content: object): void {
  makeFolders(dirname(path));
  writeFileAtomically(path, JSON.stringify(content), { durability: 'content' });
}

/** @throws where the model file cannot be read */
export function modelFingerprint(path: string): Buffer {
  const file = openSync(path, 'r');
  try {
    const head = Buffer.alloc(fingerprint_bytes);
    const bytes = readSync(file, head, 0, head.length, 0);
    return createHash('sha256')
      .update(`${fstatSync(file).size}\n`)
      .update(head.subarray(0, bytes))
      .digest();
  } finally {
    closeSync(file);
  }
}
