/** GGUF files of tests: written from a layout, and summarised. */
import { writeFile } from 'node:fs/promises';
import { readGgufParts } from '../../../native/formats/gguf-split.ts';
import { summarizeGguf } from '../../../native/formats/gguf-summary.ts';
import type { GgufLayout, GgufTensorPlace } from '../../../native/formats/gguf-writer.ts';
import type { ModelFileSummary } from '../../../spec/model-summary.ts';

/** Writes a whole file; `data` has the bytes of a tensor, as many as its place takes. */
export async function writeGguf(
  path: string,
  layout: GgufLayout,
  data: (tensor: GgufTensorPlace) => Uint8Array,
): Promise<void> {
  const file = Buffer.alloc(layout.file_bytes);
  file.set(layout.header);
  for (const tensor of layout.tensors) file.set(data(tensor), tensor.offset_bytes);
  await writeFile(path, file);
}

/** Of one file, or of any part of a split. Vocabulary and merges are counted, not kept. */
export function summarizeGgufFile(path: string): ModelFileSummary {
  return summarizeGguf(readGgufParts(path, { keep_array_items: 4096 }));
}
