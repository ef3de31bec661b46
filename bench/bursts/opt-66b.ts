/** OPT-66B as FlexPipe measured it (Table 2: 120 GB of weights, 4096 tokens, A100), for 4 to 32 stages. */
import type { ProfiledGranularity } from '../../solver/pipeline-simulator/serving.ts';

const weight_bytes = 120e9;

/** Stages, seconds to load them, milliseconds of a micro-batch in one, milliseconds of all hops, sequences. */
const table: readonly (readonly [number, number, number, number, number])[] = [
  [4, 47.14, 69.94, 6.3, 128],
  [8, 13.05, 36.63, 14.7, 256],
  [16, 9.19, 18.67, 31.5, 512],
  [32, 5.43, 9.67, 65.1, 1024],
];

export const opt66b: readonly ProfiledGranularity[] = table.map(
  ([stages, load_s, compute_ms, hops_ms, batch_max]) => ({
    stages,
    batch_max,
    stage_s: compute_ms / 1000,
    hops_s: hops_ms / 1000,
    load_s,
    stage_bytes: weight_bytes / stages,
    // KV and buffers: the table does not tell; the share is the same, since a stage has b / η sequences of 1/η of
    // the model.
    reserve_bytes: 10e9,
  }),
);

/**
 * Passes of one request. Fig. 8 has 45, 105 and 225 ms of communication where Table 2 has 6.3, 14.7 and 31.5 ms a
 * pass: 7.14 passes, with 4, 8 and 16 stages at CV 1, 2 and 4.
 */
export const passes_mean = 45 / 6.3;

/** 64 layers with 2 × 9216 elements of 2 bytes a token, for the 1,500 tokens or so of an Azure conversation. */
export const kv_bytes = 64 * 2 * 9216 * 2 * 1500;
