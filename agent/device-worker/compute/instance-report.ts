/** A model on a shared device, for people. */
import { attainableSlo } from '../../../solver/sharing/attainable-slo.ts';
import type { RequestView } from '../../../solver/sharing/device-view.ts';
import { kvDemand } from '../../../solver/sharing/kv-budget.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { headroom, sloOf } from '../../../solver/sharing/slo.ts';
import type { InstanceReport } from '../../../spec/device-report.ts';
import { toldWeights } from '../../streaming/told-weights.ts';
import type { ScheduledInstance } from './scheduled-instance.ts';

/** Length of the request by which estimates are shown. */
const typical_tokens = 512;

/** Whether the idle device keeps what is promised to a request of typical length. */
export function keepsSlo(instance: ScheduledInstance, settings: SharingSettings): boolean {
  const typical: RequestView = {
    id: 'typical',
    arrival_ms: 0,
    input_tokens: typical_tokens,
    output_tokens: 0,
    expected_output_tokens: 1,
    prefill_tokens_left: typical_tokens,
    available_at_ms: 0,
    service_level: sloOf(instance.slo ?? {}, typical_tokens),
  };
  return attainableSlo(instance, typical, settings).kept;
}

/** What a device's report says of one of its models. */
export function instanceReport(
  instance: ScheduledInstance,
  now_ms: number,
  settings: SharingSettings,
): InstanceReport {
  const { model, slo, growing, requests, profile } = instance;
  const prompts = requests.filter(({ prefill_tokens_left }) => prefill_tokens_left > 0).length;
  const headrooms = [...instance.live.values()].map((request) => headroom(request, now_ms));
  const report: InstanceReport = {
    model,
    prompts,
    decoding: requests.length - prompts,
    waiting: instance.waiting,
    max_sequences: instance.max_sequences,
    weight_bytes: instance.weight_bytes,
    kv_bytes: instance.kv_bytes,
    kv_used_bytes: instance.kv_used_bytes,
    kv_required_bytes: kvDemand(instance, settings).required_bytes,
    profile: {
      prefill_points: growing.points.prefill,
      decode_points: growing.points.decode,
      prefill_512_ms: profile.prefill_ms(typical_tokens),
      decode_512_ms: profile.decode_ms(1, typical_tokens),
    },
  };
  const streamed = toldWeights(instance.engine.stats());
  if (streamed) report.streamed = streamed;
  if (slo) {
    report.slo = { ...slo };
    report.profile.keeps_level = keepsSlo(instance, settings);
  }
  if (headrooms.length > 0) report.headroom_ms = Math.min(...headrooms);
  if (instance.idle_since_ms !== undefined) report.idle_ms = now_ms - instance.idle_since_ms;
  return report;
}
