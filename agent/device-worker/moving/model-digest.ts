import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { openModelFile } from '../../engine/model-file.ts';
import { type ContentHashCache, rangeKey } from '../../memory/content-hashes.ts';
import { fileVersion } from '../../memory/file-version.ts';

/**
 * What a model file says, wherever it lies: SHA-256 of what stands before its tensors (hyper-parameters, tokenizer,
 * names and shapes) and of the hashes of the tensors. Keys and values of two workers mean the same only where it is the
 * same.
 * @returns undefined where the tensors of this version of the file were not hashed yet
 */
export function modelDigest(hashes: ContentHashCache, path: string): string | undefined {
  const known = hashes.read(fileVersion(path, statSync(path, { bigint: true })));
  if (!known) return undefined;
  const { tensors } = openModelFile(path).gguf;
  const head_bytes = Math.min(...tensors.map(({ offset_bytes }) => offset_bytes));
  const hash = createHash('sha256').update(readHead(path, head_bytes));
  for (const { offset_bytes, size_bytes } of tensors) {
    const content = known.get(rangeKey({ offset_bytes, size_bytes }));
    if (content === undefined) return undefined;
    hash.update(content);
  }
  return hash.digest('hex');
}

function readHead(path: string, bytes: number): Uint8Array {
  const head = new Uint8Array(bytes);
  const descriptor = openSync(path, 'r');
  try {
    for (let done = 0; done < bytes; ) {
      const count = readSync(descriptor, head, done, bytes - done, done);
      if (count === 0) throw new Error(`${path} ends within its head`);
      done += count;
    }
    return head;
  } finally {
    closeSync(descriptor);
  }
}
