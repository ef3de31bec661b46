/** Tokens of an engine on a Vulkan device beside those of libllama on the same one. */
import { expect } from 'vitest';
import { LlamaContext } from '../../../../native/llama-context.ts';
import { argmax, type Generated, rootMeanSquare, topGap } from '../../engine/support.ts';
import { tolerances } from '../../engine/tolerances.ts';

let judged = 0;
let differing = 0;

/** Matrices in 32 bits are multiplied in 16 there: libllama differs from itself by 0.017, and from its CPU by 0.025. */
const toleranceOf = (type: string): number => tolerances[type === 'F32' ? 'F16' : type]!;

/** Every token is the reference's own, unless its two best are closer than four times the tolerance. */
export function judge(type: string, generated: Generated, rows: readonly Float32Array[]): void {
  const tolerance = toleranceOf(type);
  rows.forEach((row, index) => {
    judged++;
    expect(rootMeanSquare(row, generated.rows[index]!), `row ${index}`).toBeLessThan(tolerance);
    if (argmax(row) === generated.tokens[index]) return;
    differing++;
    expect(topGap(row), `token ${index}`).toBeLessThan(4 * tolerance);
  });
}

export function reference(path: string): LlamaContext {
  return new LlamaContext({
    model_path: path,
    threads: 1,
    n_ctx: 1024,
    n_seq_max: 1,
    n_batch: 1024,
    gpu_layers: 99,
  });
}

export function tellJudged(): void {
  console.log(`${judged} tokens judged, ${differing} chosen otherwise within near ties`);
}
