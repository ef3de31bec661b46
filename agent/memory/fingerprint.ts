/**
 * Fingerprints of tensors: what makes two tensors the same region of a pool (Tangram §3.1). A fingerprint covers
 * the bytes and how they lie in the pool, and there are two kinds of it:
 *
 * - **by file**: device, inode, size, time of modification and time of change of the file, and the range in it. It
 *   costs one stat(2), so every load has it. It says that these are the same bytes of the same, untouched file. What
 *   it trusts is the filesystem: a write always moves the time of change, which programs cannot set.
 * - **by content**: SHA-256 of the bytes. It costs reading the file once, which is done in the background and kept
 *   (see `content-hashes.ts`). It lets models share tensors across files: fine-tunes of one base, copies under
 *   two names.
 *
 * Samples of the bytes are not enough for either: two fine-tunes may differ in a few rows, and then one would
 * answer with weights of the other.
 */
import { createHash } from 'node:crypto';
import { type ContentHashes, rangeKey } from './content-hashes.ts';
import { type FileVersion, versionText } from './file-version.ts';
import type { FileRange } from './load/pieces.ts';

/** A tensor as it will lie in the pool. */
export interface TensorIdentity {
  /** ggml's names of the buffer type and of the storage type. */
  layout: string;
  type: string;
  row_elements: number;
  rows: number;
  /** Ranges of the file that follow one another in the tensor. */
  parts: readonly FileRange[];
}

/** @returns keys of the tensor, the strongest first: by content where it is known, by file always */
export function fingerprints(
  tensor: TensorIdentity,
  file: FileVersion,
  contents: ContentHashes | undefined,
): string[] {
  const version = versionText(file);
  const byFile = tensor.parts.map((part) => `${version}:${rangeKey(part)}`);
  const byContent = tensor.parts.map((part) => contents?.get(rangeKey(part)));
  const known = byContent.filter((hash) => hash !== undefined);
  const keys = [digest('file', tensor, byFile)];
  if (known.length === byContent.length) keys.unshift(digest('content', tensor, known));
  return keys;
}

function digest(kind: string, tensor: TensorIdentity, parts: readonly string[]): string {
  const { layout, type, row_elements, rows } = tensor;
  return createHash('sha256')
    .update(JSON.stringify([kind, layout, type, row_elements, rows, ...parts]))
    .digest('base64url');
}
