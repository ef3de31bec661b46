import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';

/** GGML_PREC_F32 of ggml.h. */
const prec_f32 = 10;

/**
 * ggml's attention without bias or soft cap. Kernels of devices add up in F16 where nobody asks for F32, as libllama
 * does: errors get larger then, and what does not fit into F16 is no number.
 *
 * @param mask null: every query sees every key
 */
export function flashAttention(
  ggml: Ggml,
  context: Pointer,
  { q, k, v, mask, scale }: { q: Pointer; k: Pointer; v: Pointer; mask: Pointer | null; scale: number },
): Pointer {
  const attended = ggml.ggml_flash_attn_ext(context, q, k, v, mask, scale, 0, 0)!;
  ggml.ggml_flash_attn_ext_set_prec(attended, prec_f32);
  return attended;
}
