/** Hashes the tensors of a model file in the background, so that files which have tensors in common can share them. */
import { statSync } from 'node:fs';
import { openModelFile } from '../engine/model-file.ts';
import type { ContentHashCache } from './content-hashes.ts';
import { fileVersion } from './file-version.ts';

/** @throws HpcserveError E_POOL_LOAD: the file cannot be read, or changed meanwhile; E_MODEL_* */
export async function learnContents(hashes: ContentHashCache, path: string): Promise<void> {
  const version = fileVersion(path, statSync(path, { bigint: true }));
  if (hashes.read(version)) return;
  const ranges = openModelFile(path).gguf.tensors.map(({ offset_bytes, size_bytes }) => ({
    offset_bytes,
    size_bytes,
  }));
  await hashes.learn(version, ranges);
}
