/** Tensor data cut into chunks of rows that threads compute and write independently. */
import { writeSync } from 'node:fs';
import { ggmlRow_bytes, ggmlTypeByName } from '../formats/ggml-types.ts';
import { encodeRows, type WeightTask } from './weights.ts';

export interface ChunkWork {
  /** An open, writable descriptor; threads share it and write at positions. */
  descriptor: number;
  tasks: readonly WeightTask[];
  seed: number;
  /** One Int32: the next chunk that nobody has taken. */
  next_chunk: SharedArrayBuffer;
}

/** Memory a thread holds. Larger: fewer writes; above some MiB nothing is gained. */
const chunk_bytes = 4 * 1024 * 1024;

/** Computes chunks until none are left; `done` hears the bytes of each. */
export function runChunks(work: ChunkWork, done: (bytes: number) => void): void {
  const counter = new Int32Array(work.next_chunk);
  const chunks = work.tasks.map(chunkRows);
  let mine = Atomics.add(counter, 0, 1);
  let before = 0;
  for (const [index, task] of work.tasks.entries()) {
    const { rows, row_bytes, count } = chunks[index]!;
    while (mine < before + count) {
      const begin = (mine - before) * rows;
      const end = Math.min(begin + rows, task.rows);
      const out = new Uint8Array((end - begin) * row_bytes);
      const bytes = encodeRows(task, work.seed, begin, end, out);
      writeFully(work.descriptor, out, task.offset_bytes + begin * row_bytes);
      done(bytes);
      mine = Atomics.add(counter, 0, 1);
    }
    before += count;
  }
}

function chunkRows(task: WeightTask): { rows: number; row_bytes: number; count: number } {
  const row_bytes = ggmlRow_bytes(ggmlTypeByName(task.type), task.row_elements);
  const rows = Math.max(1, Math.floor(chunk_bytes / row_bytes));
  return { rows, row_bytes, count: Math.ceil(task.rows / rows) };
}

function writeFully(descriptor: number, bytes: Uint8Array, position: number): void {
  for (let done = 0; done < bytes.length; ) {
    done += writeSync(descriptor, bytes, done, bytes.length - done, position + done);
  }
}
