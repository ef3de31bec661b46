import type { Backend } from '../../../agent/backend/backend.ts';
import type { NativeEngine } from '../../../agent/engine/native-engine.ts';
import type { ScratchSource } from '../../../agent/engine/scratch.ts';
import { CallbackBufferType } from '../../../native/callback-buffer-type.ts';
import type { SequenceOutput } from '../../../spec/engine-contract.ts';
import { GreedyRecorder, prompt, stepAlone } from './support.ts';

/** Of each prompt that `addPrompt` adds. */
export const answer_tokens = 12;

/** Memory for results of graphs of which there is no more than so much. */
export class BoundedResults implements ScratchSource {
  bytes_max = Number.POSITIVE_INFINITY;
  /** The most that was asked for. */
  asked_bytes = 0;
  readonly #backend: Backend;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  open(): ReturnType<ScratchSource['open']> {
    const { ggml, plain } = this.#backend;
    const type = new CallbackBufferType(ggml, plain, (bytes) => {
      this.asked_bytes = Math.max(this.asked_bytes, bytes);
      if (bytes > this.bytes_max) return undefined;
      return ggml.ggml_backend_buft_alloc_buffer(plain, bytes) ?? undefined;
    });
    return { bufferType: type.pointer, pool_bytes: 0, free: () => type.free() };
  }
}

export function addPrompt(engine: NativeEngine, id: number, length: number): void {
  engine.add({
    id,
    prompt_tokens: prompt(length, engine.info.n_vocab, id),
    sampler: new GreedyRecorder(),
    max_new_tokens: answer_tokens,
    stop_tokens: new Set(),
  });
}

export function tokensOf(outputs: readonly SequenceOutput[], id: number): number[] {
  return outputs.flatMap((output) => (output.id === id && output.token ? [output.token.token] : []));
}

/** Until all have ended. @param meanwhile after each step */
export function runAll(engine: NativeEngine, meanwhile: (step: number) => void = () => {}): SequenceOutput[] {
  const outputs: SequenceOutput[] = [];
  for (let step = 0; engine.busy; step++) {
    outputs.push(...stepAlone(engine).outputs);
    meanwhile(step);
  }
  return outputs;
}
