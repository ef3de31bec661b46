import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import type { GgufFile } from '../../native/formats/gguf-reader.ts';

/** Of the file, evenly spread. Lower: files that differ in a few places pass for one; higher: more is read. */
const samples = 64;
const sample_bytes = 4096;

/** By header: a file that has changed has another one. */
const known = new WeakMap<GgufFile, string>();

/**
 * What tells a model file from another one wherever it lies: its tensors, its length, and samples of its bytes. Stages
 * of two files with another identity are no pipeline.
 */
export function modelIdentity(file: GgufFile): string {
  const identity = known.get(file) ?? hashSamples(file);
  known.set(file, identity);
  return identity;
}

function hashSamples({ path, file_bytes, tensors }: GgufFile): string {
  const hash = createHash('sha256');
  hash.update(JSON.stringify([file_bytes, tensors.map(({ name, type, shape }) => [name, type, shape])]));
  const file = openSync(path, 'r');
  try {
    const sample = new Uint8Array(sample_bytes);
    for (let index = 0; index < samples; index++) {
      const at = Math.floor((index * Math.max(0, file_bytes - sample_bytes)) / (samples - 1));
      hash.update(sample.subarray(0, readSync(file, sample, 0, sample_bytes, at)));
    }
  } finally {
    closeSync(file);
  }
  return hash.digest('hex').slice(0, 32);
}
