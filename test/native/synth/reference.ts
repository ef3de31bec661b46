/** libllama as the judge of synthetic files: loads one, decodes greedily, gives the logits of every position. */

import { addressOf, memoryAt } from '../../../native/ggml.ts';
import { FlashAttention, LoadMode, loadLlama } from '../../../native/llama.ts';
import { Vocabulary } from '../../../native/vocabulary.ts';

export interface ReferenceRun {
  tokens: number[];
  text: string;
  /** Of the logits at each generated position: best minus second. */
  top_gaps: number[];
  logit_deviation: number;
}

/** Throws where libllama refuses the file. */
export function decodeGreedily(path: string, prompt: string, count: number): ReferenceRun {
  const llama = loadLlama();
  const vocabulary = Vocabulary.open(path);
  const model = llama.llama_model_load_from_file(path, {
    ...llama.llama_model_default_params(),
    n_gpu_layers: 0,
    load_mode: LoadMode.mmap,
    use_extra_bufts: false,
  });
  if (!model) throw new Error(`libllama refuses ${path}`);
  const context = llama.llama_init_from_model(model, {
    ...llama.llama_context_default_params(),
    n_ctx: 512,
    // Threads of ggml spin at barriers, so that test files side by side would take cores from one another.
    n_threads: 1,
    n_threads_batch: 1,
    flash_attn_type: FlashAttention.disabled,
  });
  if (!context) throw new Error(`libllama makes no context for ${path}`);
  try {
    const run: ReferenceRun = { tokens: [], text: '', top_gaps: [], logit_deviation: 0 };
    let input = vocabulary.tokenize(prompt);
    let position = 0;
    for (let step = 0; step < count; step++) {
      const logits = decode(llama, context, input, position, vocabulary.n_tokens);
      position += input.length;
      const { best, gap } = topTwo(logits);
      run.tokens.push(best);
      run.top_gaps.push(gap);
      run.logit_deviation = deviation(logits);
      input = Int32Array.of(best);
    }
    run.text = vocabulary.detokenize(run.tokens, true);
    return run;
  } finally {
    llama.llama_free(context);
    llama.llama_model_free(model);
    vocabulary.close();
  }
}

function decode(
  llama: ReturnType<typeof loadLlama>,
  context: bigint,
  tokens: Int32Array,
  position: number,
  n_vocab: number,
): Float32Array {
  const positions = Int32Array.from(tokens, (_, index) => position + index);
  const counts = new Int32Array(tokens.length).fill(1);
  const sequence = Int32Array.of(0);
  const sequences = new BigInt64Array(tokens.length).fill(addressOf(sequence));
  const wanted = new Int8Array(tokens.length);
  wanted[tokens.length - 1] = 1;
  const status = llama.llama_decode(context, {
    n_tokens: tokens.length,
    token: addressOf(tokens),
    embd: null,
    pos: addressOf(positions),
    n_seq_id: addressOf(counts),
    seq_id: addressOf(sequences),
    logits: addressOf(wanted),
  });
  if (status !== 0) throw new Error(`llama_decode gave ${status}`);
  const address = llama.llama_get_logits_ith(context, -1);
  if (!address) throw new Error('no logits');
  const bytes = memoryAt(address, 4 * n_vocab);
  return new Float32Array(bytes.buffer, bytes.byteOffset, n_vocab).slice();
}

function topTwo(logits: Float32Array): { best: number; gap: number } {
  let best = 0;
  let second = Number.NEGATIVE_INFINITY;
  for (let token = 1; token < logits.length; token++) {
    if (logits[token]! > logits[best]!) {
      second = logits[best]!;
      best = token;
    } else second = Math.max(second, logits[token]!);
  }
  return { best, gap: logits[best]! - second };
}

function deviation(values: Float32Array): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}
