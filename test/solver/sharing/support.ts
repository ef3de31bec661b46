/** Devices, requests and a profile whose times are a formula, so that interpolation is exact. */
import {
  type DeviceView,
  type InstanceView,
  type RequestView,
  standing_bytes,
} from '../../../solver/sharing/device-view.ts';
import { IterationProfile } from '../../../solver/sharing/profile.ts';
import { defaultSharingSettings, type SharingSettings } from '../../../solver/sharing/settings.ts';

/** Estimates are taken for exact, and the future for as long as it is expected to be. */
export const exact: SharingSettings = { ...defaultSharingSettings, overestimate: 0, growth_share: 1 };

/** The paper's plain order, without what this project adds to it. */
export const plain: SharingSettings = {
  ...exact,
  early_prefill: false,
  drain_headroom_ms: Number.POSITIVE_INFINITY,
};

export interface Speed {
  /** Reading the weights, ms. */
  step_ms: number;
  /** Per sequence of a batch, and per token that it attends to. */
  sequence_ms: number;
  token_ms: number;
  /** Per token of a prompt. */
  prompt_ms: number;
}

export const cpuSpeed: Speed = { step_ms: 60, sequence_ms: 1, token_ms: 0.002, prompt_ms: 0.5 };
export const gpuSpeed: Speed = { step_ms: 12, sequence_ms: 0.2, token_ms: 0.0002, prompt_ms: 0.06 };

/** One that several instances fill. */
export const slowGpuSpeed: Speed = { step_ms: 25, sequence_ms: 0.8, token_ms: 0.001, prompt_ms: 0.15 };

export function decodeTime(speed: Speed, batch: number, tokens: number): number {
  return speed.step_ms + batch * speed.sequence_ms + batch * tokens * speed.token_ms;
}

export function formulaProfile(speed: Speed): IterationProfile {
  const lengths = [1, 128, 512, 2048, 8192];
  return new IterationProfile({
    prefill: lengths.map((tokens) => ({ tokens, ms: speed.step_ms + tokens * speed.prompt_ms })),
    decode: lengths.flatMap((tokens) =>
      [1, 4, 16, 64].map((batch) => ({ batch, tokens, ms: decodeTime(speed, batch, tokens) })),
    ),
  });
}

export function request(id: string, changes: Partial<RequestView> = {}): RequestView {
  return {
    id,
    arrival_ms: 0,
    input_tokens: 500,
    output_tokens: 0,
    expected_output_tokens: 100,
    prefill_tokens_left: changes.input_tokens ?? 500,
    available_at_ms: 0,
    service_level: { ttft_ms: 2000, tpot_ms: 250 },
    ...changes,
  };
}

/** A request in the middle of its answer. */
export function decoding(id: string, changes: Partial<RequestView> = {}): RequestView {
  return request(id, { output_tokens: 10, first_token_ms: -2400, prefill_tokens_left: 0, ...changes });
}

export function instance(
  id: string,
  requests: RequestView[],
  changes: Partial<InstanceView> = {},
): InstanceView {
  return {
    id,
    model: id.split('@')[0]!,
    profile: formulaProfile(gpuSpeed),
    ready_at_ms: 0,
    weight_bytes: 10_000,
    kv_bytes: 10_000,
    kv_bytes_per_token: 1,
    requests,
    ...changes,
  };
}

export function device(id: string, instances: InstanceView[], changes: Partial<DeviceView> = {}): DeviceView {
  const used_bytes = instances.reduce((sum, one) => sum + standing_bytes(one) + one.kv_bytes, 0);
  return {
    id,
    kind: 'gpu',
    compute: 'A100',
    instances,
    pool_bytes: 100_000,
    budget_bytes: used_bytes,
    held_bytes: used_bytes,
    release_ms: 0,
    ...changes,
  };
}
