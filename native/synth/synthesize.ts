/**
 * Writes a real GGUF file with seeded random weights and a usable tokenizer. The same shape, quantization and
 * seed give the same bytes on every machine, whatever the number of threads. Memory stays at the header (a few
 * MB for a large vocabulary) plus 4 MiB a thread.
 */
import { open, rename, rm, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Worker } from 'node:worker_threads';
import { compiledFile } from '../../host/programs.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isOutOfRoom, systemCode } from '../../spec/errors/system-error.ts';
import { modelFileError } from '../formats/file-window.ts';
import { type GgufLayout, layoutGguf } from '../formats/gguf-writer.ts';
import { type ChunkWork, runChunks } from './chunks.ts';
import { modelMetadata } from './metadata.ts';
import { type SynthQuantization, tensorType } from './quantization.ts';
import { checkShape, countParameters, planTensors, type SynthShape } from './shape.ts';
import { llamaFamily, qwenFamily } from './tokenizer/families.ts';
import { buildVocabulary, vocabularyMetadata } from './tokenizer/vocabulary.ts';
import { fillOf, type WeightTask } from './weights.ts';

export interface SynthOptions {
  /** File to write; replaced where it exists. */
  path: string;
  shape: SynthShape;
  quantization: SynthQuantization;
  /** Unsigned 32-bit integer. */
  seed: number;
  /** Threads that compute; 0 computes in the calling thread. Default 0. */
  threads?: number;
  on_progress?: (bytes_written: number, bytes_total: number) => void;
}

export interface SynthResult {
  path: string;
  file_bytes: number;
  n_params: number;
  n_tensors: number;
  elapsed_ms: number;
}

/** Throws E_MODEL_SYNTH (sizes), E_MODEL_DISK (space), E_MODEL_MISSING or E_MODEL_UNREADABLE (folder). */
export async function synthesize(options: SynthOptions): Promise<SynthResult> {
  const started = performance.now();
  const { shape, seed } = options;
  checkShape(shape);
  if (!Number.isInteger(seed) || seed < 0 || seed > 0xffffffff) {
    throw new HpcserveError('E_MODEL_SYNTH', {
      what: `the seed ${seed} is not allowed`,
      because: 'seeds are integers between 0 and 4294967295',
    });
  }
  const { layout, tasks, n_params } = planFile(shape, options.quantization, seed);
  await checkSpace(options.path, layout.file_bytes);
  const partial = `${options.path}.partial`;
  try {
    await writeFile(partial, layout, tasks, options);
    await rename(partial, options.path);
  } catch (error) {
    await rm(partial, { force: true });
    throw diskError(options.path, error);
  }
  return {
    path: options.path,
    file_bytes: layout.file_bytes,
    n_params,
    n_tensors: tasks.length,
    elapsed_ms: performance.now() - started,
  };
}

interface FilePlan {
  layout: GgufLayout;
  tasks: WeightTask[];
  n_params: number;
}

/** Where everything will stand in the file, before any of it is made. */
export function planFile(shape: SynthShape, quantization: SynthQuantization, seed: number): FilePlan {
  const family = shape.architecture === 'llama' ? llamaFamily : qwenFamily;
  const vocabulary = buildVocabulary(family, shape.n_vocab, seed);
  const metadata = new Map([...modelMetadata(shape, quantization, seed), ...vocabularyMetadata(vocabulary)]);
  const plans = planTensors(shape);
  const specs = plans.map((plan) => ({
    name: plan.name,
    shape: plan.shape,
    type: tensorType(plan, quantization, shape),
  }));
  const layout = layoutGguf(metadata, specs);
  const tasks = plans.map((plan, index) => ({
    name: plan.name,
    type: specs[index]!.type,
    row_elements: plan.shape[0]!,
    rows: plan.shape.slice(1).reduce((product, extent) => product * extent, 1),
    offset_bytes: layout.tensors[index]!.offset_bytes,
    fill: fillOf(plan, shape, vocabulary.first_special),
  }));
  return { layout, tasks, n_params: countParameters(plans) };
}

async function writeFile(
  path: string,
  layout: GgufLayout,
  tasks: readonly WeightTask[],
  options: SynthOptions,
): Promise<void> {
  await using file = await open(path, 'w');
  await file.write(layout.header, 0, layout.header.length, 0);
  await file.truncate(layout.file_bytes);
  const work: ChunkWork = {
    descriptor: file.fd,
    tasks,
    seed: options.seed,
    next_chunk: new SharedArrayBuffer(4),
  };
  let written = layout.header.length;
  const done = (bytes: number): void => {
    written += bytes;
    options.on_progress?.(written, layout.file_bytes);
  };
  const threads = options.threads ?? 0;
  if (threads === 0) runChunks(work, done);
  else await Promise.all(Array.from({ length: threads }, () => runThread(work, done)));
}

/** Threads need compiled JavaScript, wherever this file itself runs from: Node 20 runs no TypeScript. */
function runThread(work: ChunkWork, done: (bytes: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const worker = new Worker(compiledFile('native/synth/weight-worker.js'), { workerData: work });
    worker.on('message', done);
    worker.once('error', reject);
    worker.once('exit', (code) => {
      if (code === 0) resolve();
      else reject(new Error(`a synthesis thread ended with code ${code}`));
    });
  });
}

async function checkSpace(path: string, bytes: number): Promise<void> {
  const folder = dirname(path);
  const space = await statfs(folder).catch((error: unknown) => {
    throw modelFileError(folder, error);
  });
  const free = space.bavail * space.bsize;
  if (free < bytes) {
    throw new HpcserveError('E_MODEL_DISK', {
      what: `${path} does not fit`,
      because: `it takes ${bytes} bytes, and ${folder} has ${free} free`,
    });
  }
}

function diskError(path: string, error: unknown): unknown {
  if (isOutOfRoom(error) || systemCode(error) === 'EFBIG') {
    return new HpcserveError('E_MODEL_DISK', {
      what: `${path} could not be written`,
      because: (error as Error).message,
      cause: error,
    });
  }
  return modelFileError(path, error);
}
