/** Whose attention an engine takes: ours where it is right and asked for, and else where it is quicker. */
import { expect, test } from 'vitest';
import type { Backend } from '../../../agent/backend/backend.ts';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import { attentionFor } from '../../../agent/engine/attention-choice.ts';
import { kernelChoice } from '../../../agent/engine/kernel-choice.ts';
import { type Ggml, GgmlType, loadGgml } from '../../../native/ggml.ts';

const cpu = cpuBackend(loadGgml());
const heads = { kv_type: GgmlType.F16, n_head: 8, n_head_kv: 2, head_dim: 64 };
const options = { threads: 1, batch_invariant: false };
const decoding = [{ past_tokens: 100, rows: 1, blocks: [] }];
const prompt = [{ past_tokens: 0, rows: 20, blocks: [] }];

/** The CPU with another ggml_flash_attn_ext. */
function backendWith(flash: Ggml['ggml_flash_attn_ext']): Backend {
  const ggml = { ...cpu.ggml, ggml_flash_attn_ext: flash };
  return { ...cpu, ggml, plain: cpu.plain, compute: (asked) => cpu.compute(asked) };
}

test('ours serves every batch where it is asked for, or where answers must not depend on the batch', () => {
  for (const more of [{ kernels: 'own' as const }, { batch_invariant: true }]) {
    const attention = attentionFor(cpu, heads, { ...options, ...more })!;
    expect([attention.serves(decoding), attention.serves(prompt)]).toEqual([true, true]);
  }
});

test('ggml’s serves where it is asked for, and where heads are not ours', () => {
  expect(attentionFor(cpu, heads, { ...options, kernels: 'ggml' })).toBeUndefined();
  const wide = { ...heads, head_dim: 512 };
  expect(attentionFor(cpu, wide, { ...options, kernels: 'own' })).toBeUndefined();
});

test('the two are timed once, and what was found is kept', () => {
  let asked = 0;
  const backend = backendWith((...args) => {
    asked++;
    return cpu.ggml.ggml_flash_attn_ext(...args);
  });
  attentionFor(backend, heads, options);
  asked = 0;
  attentionFor(backend, heads, options);
  expect(asked).toBe(0);
});

test('ours is left out, and that is told, where it disagrees with ggml’s', () => {
  // Heads that no model has, so that nothing is known of them.
  const strange = { ...heads, n_head: 5, n_head_kv: 5, head_dim: 12 };
  const backend = backendWith((context, q, k, v, mask, scale, bias, softcap) =>
    cpu.ggml.ggml_flash_attn_ext(context, q, k, v, mask, 4 * scale, bias, softcap),
  );
  expect(attentionFor(backend, strange, { ...options, kernels: 'own' })).toBeUndefined();
  expect(kernelChoice(backend.ggml).left_out.map(({ code, message }) => [code, message])).toEqual([
    ['E_NATIVE_KERNEL', expect.stringContaining('our attention by')],
  ]);
});
