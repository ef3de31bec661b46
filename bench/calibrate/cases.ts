/** Predictions for the rows of the tables, and which rows the constants may be fitted on. */
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import type { ModelShape } from '../../solver/catalog/model-shape.ts';
import { weightPrecision } from '../../solver/catalog/weight-precision.ts';
import { type Calibration, roofline } from '../../solver/simulator/calibration.ts';
import { replicaOf } from '../../solver/simulator/deployment.ts';
import { requestColumns } from '../../solver/simulator/requests.ts';
import { simulateServing } from '../../solver/simulator/simulate.ts';
import type { IterationRow, RecordedRequest, SiliconRow } from './tables.ts';

/**
 * The split. Fitted on: H100, TP 2 and 8, batches 4, 16 and 64 (vLLM), the same of H200 for TensorRT-LLM,
 * which the table has on no other GPU. Kept out: H200 under vLLM as a whole GPU, TP 1 and 4, batches 8, 32
 * and 128.
 */
export function siliconIsFitted(row: SiliconRow): boolean {
  const gpu = row.backend === 'trtllm' ? 'h200_sxm' : 'h100_sxm';
  return row.system === gpu && [2, 8].includes(row.tp) && [4, 16, 64].includes(row.batch);
}

/** Batch 512 ran with a limit on running sequences that the table does not tell: its TPOT is below batch 64's. */
export function siliconIsUsable(row: SiliconRow): boolean {
  return row.batch < 512;
}

/**
 * Whether the closed loop needs more KV than the devices hold: then queueing sets the TTFT, and the engine's
 * KV precision and memory share, which the table does not tell, decide.
 */
export function siliconSaturates(row: SiliconRow): boolean {
  const { limits } = replicaOf(siliconConfig(row, roofline));
  return row.batch * (row.isl + row.osl) > 0.9 * limits.kv_tokens;
}

function siliconShape(row: SiliconRow): ModelShape {
  const shape = findModel(row.model);
  // gpt-oss carries its own precision (MXFP4 experts); the 70 B ran as an FP8 checkpoint.
  return shape.experts === undefined ? { ...shape, weights: weightPrecision('fp8') } : shape;
}

function siliconConfig(row: SiliconRow, calibration?: Calibration) {
  return {
    model: siliconShape(row),
    device: findDevice(row.system),
    engine: row.backend,
    tp: row.tp,
    pp: 1,
    // TensorRT-LLM's FP8 checkpoints quantize the KV cache too; vLLM keeps the model's type unless told.
    kv_bits: row.backend === 'trtllm' ? (8 as const) : (16 as const),
    calibration,
  };
}

const rounds = 10;

/** Mean TTFT and TPOT of ten rounds of a closed loop, which is how such tables are measured. */
export function predictSilicon(
  row: SiliconRow,
  calibration?: Calibration,
): { ttft_ms: number; tpot_ms: number } {
  const requests = requestColumns(
    Array.from({ length: rounds * row.batch }, () => ({
      arrival_s: 0,
      input_tokens: row.isl,
      output_tokens: row.osl,
    })),
  );
  const { report } = simulateServing([{ ...siliconConfig(row, calibration), dp: 1 }], requests, {
    concurrency: row.batch,
  });
  return { ttft_ms: report.ttft_ms.mean, tpot_ms: report.tpot_ms.mean };
}

const iterationDevices: Readonly<Record<string, string>> = {
  'a100-80gb': 'A100-SXM4-80GB',
  'xeon-32core-amx': 'Xeon-6462C',
};

/** Kept out: two of the four models, and every second batch size. CPU slices of a cloud are in no catalog. */
export function iterationIsFitted(row: IterationRow): boolean {
  if (!['llama-2-7b', 'llama-3.1-8b'].includes(row.model)) return false;
  return row.phase === 'prefill' || [1, 4, 16, 64].includes(row.batch);
}

export function iterationIsUsable(row: IterationRow): boolean {
  return iterationDevices[row.device] !== undefined;
}

/** Milliseconds of one iteration. */
export function predictIteration(row: IterationRow, calibration?: Calibration): number {
  const name = iterationDevices[row.device]!;
  const { model } = replicaOf({
    model: findModel(row.model),
    device: findDevice(name),
    engine: row.device === 'a100-80gb' ? 'vllm-v0' : 'openvino',
    tp: 1,
    pp: 1,
    kv_tokens: 1e6,
    calibration,
  });
  const keys = row.batch * row.tokens;
  return (
    1e3 *
    (row.phase === 'prefill'
      ? model.stepTime_s(0, 0, 0, [{ tokens: row.tokens, before: 0, last: true }])
      : model.stepTime_s(row.batch, keys, keys))
  );
}

/** Requests the constants may be fitted on; the rest of the recorded run is kept out. */
export const recorded_fitted = 100;

/** The recorded run: vLLM 0.19, 128 sequences and 2048 tokens a step, one RTX PRO 6000. */
export function predictRecorded(
  run: readonly RecordedRequest[],
  calibration?: Calibration,
): { ttft_s: Float64Array; tpot_s: Float64Array; e2e_s: Float64Array } {
  return simulateServing(
    [
      {
        model: findModel('llama-3.1-8b'),
        device: findDevice('RTX-PRO-6000'),
        engine: 'vllm',
        tp: 1,
        pp: 1,
        dp: 1,
        max_sequences: 128,
        max_batched_tokens: 2048,
        calibration,
      },
    ],
    requestColumns(run),
  );
}
