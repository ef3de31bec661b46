/**
 * What iterations on a 32-core AMX Xeon would take with other kernels than OpenVINO's, which LLM-Mesh's authors
 * measured: by the simulator, whose constants for the native engine and for ggml's kernels were measured on two cores
 * of such a CPU. Arithmetic goes with the cores; of the memory's bandwidth they have the share that OpenVINO reached on
 * all 32.
 */
import { findDevice } from '../catalog/devices.ts';
import { findModel } from '../catalog/known-models.ts';
import { weightPrecision } from '../catalog/weight-precision.ts';
import { IterationProfile } from '../sharing/profile.ts';
import { calibrationFor } from '../simulator/calibration.ts';
import { replicaOf } from '../simulator/deployment.ts';
import { type MeasuredModelName, measuredIterations } from './measured-iterations.ts';

export interface SimulatedKernels {
  /** Our kernels, or those of ggml. */
  engine: 'native' | 'llamacpp';
  weights: 'bf16' | 'q8_0' | 'q4_0';
}

/** A profile of its own with each call: observations change it. Its samples are those that were measured. */
export function simulatedProfile(
  model: MeasuredModelName,
  { engine, weights }: SimulatedKernels,
): IterationProfile {
  const { device, ...own } = calibrationFor(engine, 'cpu-amx');
  const { gemm_memory, attention_memory, attention_compute } = calibrationFor('openvino', 'cpu-amx').device;
  const { model: steps } = replicaOf({
    model: { ...findModel(model), weights: weightPrecision(weights) },
    device: findDevice('Xeon-6462C'),
    engine,
    tp: 1,
    pp: 1,
    kv_tokens: 1e6,
    calibration: { ...own, device: { ...device, gemm_memory, attention_memory, attention_compute } },
  });
  const { prefill, decode } = measuredIterations[model]['xeon-32core-amx'];
  return new IterationProfile({
    prefill: prefill.map(([tokens]) => ({
      tokens,
      ms: 1e3 * steps.stepTime_s(0, 0, 0, [{ tokens, before: 0, last: true }]),
    })),
    decode: Object.entries(decode).flatMap(([tokens, row]) =>
      row.map(([batch]) => {
        const keys = batch * Number(tokens);
        return { batch, tokens: Number(tokens), ms: 1e3 * steps.stepTime_s(batch, keys, keys) };
      }),
    ),
  });
}

/** Weights beside those of 16 bits. */
export function weightShare({ weights }: SimulatedKernels): number {
  return weightPrecision(weights).bits_per_weight / 16;
}
