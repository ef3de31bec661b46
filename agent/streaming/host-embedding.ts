import { readSync } from 'node:fs';
import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { type Ggml, memoryAt } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { cpuBackend } from '../backend/cpu/cpu-backend.ts';
import type { ModelFile } from '../engine/model-file.ts';
import { stageOperators } from '../engine/operators.ts';
import { Stage } from '../engine/stage.ts';
import { planWeights } from '../engine/weight-plan.ts';
import type { LoadedWeights } from '../engine/weights.ts';
import { headerVersion } from '../memory/file-version.ts';
import { OpenModelFile } from '../memory/load/open-model-file.ts';

/**
 * The embedding of a model whose weights are streamed. A batch needs a row a token of it: these are read from the file,
 * which is in host memory, and made into numbers by the CPU; the matrix is nowhere else.
 */
export class HostEmbedding {
  readonly #stage: Stage;
  readonly #source: OpenModelFile;
  readonly #path: string;
  readonly #offset_bytes: number;
  readonly #row_bytes: number;
  readonly #n_embd: number;
  readonly #rows: Uint8Array;

  /** @param rows_max of a batch @throws HpcserveError E_ENGINE_MODEL, E_NATIVE_MEMORY, E_POOL_LOAD */
  constructor(ggml: Ggml, file: ModelFile, rows_max: number) {
    const backend = cpuBackend(ggml);
    const range = { begin: 0, end: 1 };
    const plan = planWeights(file.gguf, file.model, stageOperators(file.model.n_layer, range), 'ggml');
    const embedding = plan.embedding!;
    const [part] = embedding.parts;
    const version = headerVersion(file.gguf);
    this.#n_embd = file.model.n_embd;
    this.#path = file.gguf.path;
    this.#offset_bytes = part!.offset_bytes;
    this.#row_bytes = part!.size_bytes / embedding.shape[1]!;
    const { id } = ggmlTypeByName(embedding.type);
    const bytes = this.#row_bytes * rows_max;
    const buffer = ggml.ggml_backend_buft_alloc_buffer(backend.plain, bytes);
    if (!buffer)
      throw new HpcserveError('E_NATIVE_MEMORY', { what: `no ${bytes} bytes for rows of the embedding` });
    const base = ggml.ggml_backend_buffer_get_base(buffer)!;
    this.#rows = memoryAt(base, bytes);
    const context = ggml.ggml_init({
      mem_size: 2 * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    const tensor: Pointer = ggml.ggml_new_tensor_2d(context, id, this.#n_embd, rows_max)!;
    ggml.ggml_backend_tensor_alloc(buffer, tensor, base);
    const weights: LoadedWeights = {
      plan,
      bytes,
      tensor: () => tensor,
      rows: () => undefined,
      free: () => {
        ggml.ggml_backend_buffer_free(buffer);
        ggml.ggml_free(context);
      },
    };
    this.#stage = new Stage(backend, file, {
      threads: 1,
      kv_tokens: 16,
      kv_type: 'f32',
      batch_invariant: false,
      range,
      weights,
    });
    try {
      this.#source = new OpenModelFile(version);
    } catch (error) {
      this.#stage.free();
      throw error;
    }
  }

  /** @returns shape [rows, n_embd], valid until the next call @throws HpcserveError E_POOL_LOAD */
  lookUp(tokens: Int32Array): Float32Array {
    tokens.forEach((token, row) => {
      const into = this.#rows.subarray(row * this.#row_bytes, (row + 1) * this.#row_bytes);
      const at = this.#offset_bytes + token * this.#row_bytes;
      if (readSync(this.#source.descriptor, into, 0, this.#row_bytes, at) === this.#row_bytes) return;
      throw new HpcserveError('E_POOL_LOAD', {
        what: `${this.#path} ended within its embedding`,
        because: `byte ${at} was asked for and is not there`,
      });
    });
    // Layers that were brought before the file changed may not meet rows of another one.
    this.#source.check();
    const rows = Int32Array.from(tokens, (_, row) => row);
    const segments = [
      { past_tokens: 0, rows: rows.length, blocks: [], output: 'all' as const, logits: false },
    ];
    return this.#stage.run({ segments, tokens: rows }).hidden.subarray(0, rows.length * this.#n_embd);
  }

  free(): void {
    this.#source.close();
    this.#stage.free();
  }
}
