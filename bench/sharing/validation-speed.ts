/** How long one shadow validation takes, on devices as a busy site has them. */
import { admitTo } from '../../solver/sharing/admission.ts';
import type { DeviceView, InstanceView, RequestView } from '../../solver/sharing/device-view.ts';
import { lanesOf } from '../../solver/sharing/lanes.ts';
import { nextIteration } from '../../solver/sharing/next-iteration.ts';
import { defaultSharingSettings } from '../../solver/sharing/settings.ts';
import { interactiveSlo } from '../../solver/sharing/slo.ts';
import { measuredProfile } from '../../solver/sharing-simulator/measured-iterations.ts';
import { seededRandom } from '../../solver/simulator/random.ts';

const now_ms = 1_000_000;
const gib = 2 ** 30;

export interface ValidationSpeed {
  /** Running requests on the device. */
  requests: number;
  /** Microseconds of one admission, memory check and building of the lanes included. */
  median_us: number;
  /** Of the slowest of all states. */
  slowest_us: number;
  /** Of one choice of the next iteration, and of the iteration that it chooses. */
  choice_us: number;
  iteration_us: number;
  admitted_share: number;
}

/** A device with 64 requests in 8 instances, of which a few wait for their prompts, in many seeded states. */
export function validationSpeed(kind: 'cpu' | 'gpu', requests = 64, states = 400): ValidationSpeed {
  const random = seededRandom(11);
  const cases = Array.from({ length: states }, () => ({
    device: busyDevice(kind, requests, random),
    newcomer: newcomer(random),
  }));
  const settings = defaultSharingSettings;
  const once = ({ device, newcomer }: (typeof cases)[number]): boolean =>
    admitTo(device, device.instances[0]!, newcomer, now_ms, settings).admit;
  for (let warm = 0; warm < 5; warm++) for (const one of cases) once(one);
  const times: number[] = [];
  let admitted = 0;
  for (const one of cases) {
    // The median of one state's repeats: what others do on this machine is not the state's doing.
    const repeats = Array.from({ length: 21 }, () => {
      const start = performance.now();
      once(one);
      return (performance.now() - start) * 1000;
    }).sort((a, b) => a - b);
    times.push(repeats[10]!);
    if (once(one)) admitted++;
  }
  times.sort((a, b) => a - b);
  let iteration_ms = 0;
  const choose = (): void => {
    iteration_ms = 0;
    for (const { device } of cases) {
      const next = nextIteration(lanesOf(device.instances, now_ms, settings), now_ms, settings);
      if ('ms' in next) iteration_ms += next.ms;
    }
  };
  choose();
  const start = performance.now();
  choose();
  return {
    requests,
    median_us: times[Math.floor(times.length / 2)]!,
    slowest_us: times.at(-1)!,
    choice_us: ((performance.now() - start) * 1000) / cases.length,
    iteration_us: (iteration_ms * 1000) / cases.length,
    admitted_share: admitted / cases.length,
  };
}

function busyDevice(kind: 'cpu' | 'gpu', requests: number, random: () => number): DeviceView {
  const instances_count = kind === 'gpu' ? 8 : 2;
  const instances = Array.from({ length: instances_count }, (_, index): InstanceView => {
    const share = Math.round(requests / instances_count);
    return {
      id: `m${index}`,
      model: `m${index}`,
      profile: measuredProfile('llama-3.2-3b', kind === 'gpu' ? 'a100-80gb' : 'xeon-32core-amx'),
      ready_at_ms: 0,
      weight_bytes: 6 * gib,
      kv_bytes: 3 * gib,
      kv_bytes_per_token: 112 * 1024,
      requests: Array.from({ length: share }, (_, at) => running(`m${index}-${at}`, random)),
    };
  });
  return {
    id: 'device',
    kind,
    compute: kind,
    instances,
    pool_bytes: 128 * gib,
    budget_bytes: instances.length * 9 * gib,
    held_bytes: instances.length * 9 * gib,
    release_ms: 50,
  };
}

function running(id: string, random: () => number): RequestView {
  const input_tokens = 100 + Math.floor(1900 * random());
  const waits = random() < 0.05;
  const output_tokens = waits ? 0 : 1 + Math.floor(200 * random());
  const service_level = interactiveSlo(input_tokens);
  const headroom_ms = 300 + 3000 * random();
  const arrival_ms = now_ms + headroom_ms - service_level.ttft_ms - service_level.tpot_ms * output_tokens;
  return {
    id,
    input_tokens,
    output_tokens,
    arrival_ms,
    service_level,
    expected_output_tokens: 220,
    prefill_tokens_left: waits ? input_tokens : 0,
    available_at_ms: 0,
  };
}

function newcomer(random: () => number): RequestView {
  const input_tokens = 100 + Math.floor(1900 * random());
  return {
    id: 'newcomer',
    input_tokens,
    output_tokens: 0,
    arrival_ms: now_ms,
    service_level: interactiveSlo(input_tokens),
    expected_output_tokens: 220,
    prefill_tokens_left: input_tokens,
    available_at_ms: 0,
  };
}
