/** What came of a simulated run, in the figures that FlexPipe §9 gives. */
import { StallMonitor } from '../granularity/stall-monitor.ts';
import { type Distribution, distributionOf } from '../simulator/statistics.ts';
import type { PipelineOutcome } from './serving.ts';

export interface PipelineFigures {
  latency_ms: Distribution;
  /** Means, by where the time went (Fig. 8). */
  waiting_ms: number;
  computing_ms: number;
  hopping_ms: number;
  /** Requests that were answered in time. */
  goodput: number;
  /** Median time from a stall to the recovery (Fig. 11), and how many there were. */
  recovery_ms: number;
  stalls: number;
  changes_s: readonly number[];
  always_on_devices: number;
  devices_max: number;
  /** Devices that were held, on average; and the share of their time in which stages computed. */
  devices_mean: number;
  utilization: number;
  /** Requests in time per hour of a device. */
  goodput_per_device_hour: number;
}

/** @param deadlineOf_ms time from arrival in which a request of so many passes is answered in time */
export function figuresOf(
  outcome: PipelineOutcome,
  deadlineOf_ms: (passes: number) => number,
): PipelineFigures {
  const { requests, held_device_s, stage_device_s, seconds } = outcome;
  const latencies = requests.map(({ done_ms, arrival_ms }) => done_ms - arrival_ms);
  const mean = (of: (request: PipelineOutcome['requests'][number]) => number): number =>
    requests.reduce((sum, request) => sum + of(request), 0) / requests.length;
  const goodput = requests.filter(
    ({ passes }, index) => latencies[index]! <= deadlineOf_ms(passes) + 1e-6,
  ).length;
  const recoveries_ms = recoveriesOf_ms(outcome);
  return {
    latency_ms: distributionOf(latencies),
    waiting_ms: mean(({ waiting_ms }) => waiting_ms),
    computing_ms: mean(({ computing_ms }) => computing_ms),
    hopping_ms: mean(({ hopping_ms }) => hopping_ms),
    goodput,
    recovery_ms: distributionOf(recoveries_ms).p50,
    stalls: recoveries_ms.length,
    changes_s: outcome.changes_s,
    always_on_devices: outcome.always_on_devices,
    devices_max: outcome.devices_max,
    devices_mean: held_device_s / seconds,
    utilization: stage_device_s / held_device_s,
    goodput_per_device_hour: goodput / (held_device_s / 3600),
  };
}

/** Stalls of the stream of answers; latencies are by pass, since answers have different lengths. */
function recoveriesOf_ms({ requests }: PipelineOutcome): number[] {
  const monitor = new StallMonitor();
  return [...requests]
    .sort((a, b) => a.done_ms - b.done_ms)
    .flatMap(({ done_ms, arrival_ms, passes }) => {
      const ended = monitor.observe(done_ms, (done_ms - arrival_ms) / passes);
      return ended === undefined ? [] : [ended.recovered_ms! - ended.began_ms];
    });
}
