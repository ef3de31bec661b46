/** Cuts a load into groups of tensors: what is fetched from one peer, verified, and placed as a whole. */
import type { ContentHashes } from '../content-hashes.ts';
import { rangeKey } from '../content-hashes.ts';
import { cutIntoUnits, type FileRange, type TensorLoad, type Unit } from '../load/pieces.ts';

/**
 * Tensors go together until they have so many bytes. Lower: more requests; higher: later ends, more memory beside the
 * pool.
 */
const group_bytes_min = 8 * 1024 * 1024;
/** A larger tensor is read from the file: what is on its way lies outside the pool until it is verified. */
const tensor_bytes_max = 256 * 1024 * 1024;

export interface TensorGroup {
  units: Unit[];
  /** Of the file, each once. */
  ranges: FileRange[];
  /** SHA-256 of each range; absent where one is not known, or too large to be fetched. */
  contents?: string[];
}

/** @param tensors in the order of the file */
export function groupTensors(
  tensors: readonly TensorLoad[],
  unit_bytes: number,
  hashes: ContentHashes,
): TensorGroup[] {
  const groups: TensorGroup[] = [];
  let members: TensorLoad[] = [];
  let bytes = 0;
  const close = (): void => {
    if (members.length === 0) return;
    const unique = new Map(members.flatMap(({ parts }) => parts).map((range) => [rangeKey(range), range]));
    const contents = [...unique.keys()].flatMap((key) => hashes.get(key) ?? []);
    const ranges = [...unique.values()];
    const fetchable =
      contents.length === ranges.length &&
      ranges.every(({ size_bytes }) => size_bytes > 0 && size_bytes <= tensor_bytes_max);
    groups.push({
      units: cutIntoUnits(members, unit_bytes),
      ranges,
      contents: fetchable ? contents : undefined,
    });
    members = [];
    bytes = 0;
  };
  for (const tensor of tensors) {
    members.push(tensor);
    for (const { size_bytes } of tensor.parts) bytes += size_bytes;
    if (bytes >= group_bytes_min) close();
  }
  close();
  return groups;
}
