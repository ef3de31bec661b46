/** Times of a decision over 2 to 32 stages, and of cutting a model of 80 layers. */
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { ArrivalWindows } from '../../solver/granularity/arrival-windows.ts';
import { decideGranularity, granularity_settings } from '../../solver/granularity/control.ts';
import { nestedPartitions } from '../../solver/partition/nested.ts';
import { partition } from '../../solver/partition/partition.ts';
import { predictGraph } from '../../solver/partition/predict-graph.ts';
import { calibrationFor } from '../../solver/simulator/calibration.ts';
import type { BenchResult } from '../result.ts';
import { opt66b, passes_mean } from './opt-66b.ts';

export function decisionTimes(log: (line: string) => void): BenchResult[] {
  return [decisionTime(), ...partitionTimes(log)];
}

/** Of the statistics and the decision together, in a burst, where every option is scored. */
function decisionTime(): BenchResult {
  const windows = new ArrivalWindows();
  for (let at_ms = 0; at_ms < 200_000; at_ms += at_ms % 20_000 < 4000 ? 10 : 200) windows.observe(at_ms);
  const [coarsest] = opt66b;
  // Table 2 begins with four stages: two take twice as long for each.
  const two = { ...coarsest!, stages: 2, batch_max: 64, stage_s: 2 * coarsest!.stage_s, hops_s: 0.0021 };
  const options = [two, ...opt66b].map((granularity) => ({
    granularity,
    devices_max: 82,
    load_s: granularity.load_s,
  }));
  const decisions = 20_000;
  const ms = medianTime_ms(5, () => {
    for (let index = 0; index < decisions; index++)
      decideGranularity({
        now_ms: 200_000,
        options,
        current: { stages: 4, instances: 1 },
        changing: false,
        arrivals: windows.read(200_000),
        passes_per_request: passes_mean,
        waiting_requests: index % 300,
        waiting_max: 128,
        stalled: index % 2 === 0,
        deadline_s: 4,
        settings: granularity_settings,
      });
  });
  return timed('a decision over 2, 4, 8, 16 and 32 stages', ms / decisions, 0.1, 'FlexPipe, at most', 5);
}

function partitionTimes(log: (line: string) => void): BenchResult[] {
  const shape = findModel('llama-3.1-70b');
  const device = findDevice('A100');
  const graph = predictGraph({
    shape,
    device,
    calibration: calibrationFor('vllm', device.family),
    rows: 32,
    context_tokens: 2048,
    kv_bits: 16,
  });
  const question = {
    operators: graph.operators,
    devices: [{ kind: 'A100', count: 32, memory_bytes: 0.9 * device.memory_bytes, speed: 1 }],
    link_bytes_per_s: 25e9,
    kv_tokens: 32 * 2048,
  };
  const { pipelines } = nestedPartitions(question);
  for (const { stages, slowest_s, cycle_s } of pipelines)
    log(
      `${shape.name}, ${stages.length} stages: the slowest takes ${(1000 * slowest_s).toFixed(2)} ms, ${(slowest_s / (stages.reduce((sum, { compute_s }) => sum + compute_s, 0) / stages.length)).toFixed(3)} of the mean (cycle with load ${(1000 * cycle_s).toFixed(0)} ms)`,
    );
  const mixed = [
    { ...question.devices[0]!, count: 16 },
    { kind: 'A40', count: 16, memory_bytes: 40 * 2 ** 30, speed: 0.45 },
  ];
  const what = `of ${graph.operators.length} operators (${shape.name})`;
  return [
    timed(
      `the best cut into 32 stages ${what}`,
      medianTime_ms(9, () => void partition({ ...question, stages: 32 })),
      50,
    ),
    timed(
      `nested cuts into 2 to 32 stages ${what}`,
      medianTime_ms(9, () => void nestedPartitions(question)),
      50,
    ),
    timed(
      `the best cut into 16 stages over two kinds of devices ${what}`,
      medianTime_ms(9, () => void partition({ ...question, devices: mixed, stages: 16 })),
      50,
    ),
  ];
}

function timed(what: string, ours_ms: number, bar_ms: number, peer = '', theirs_ms?: number): BenchResult {
  return {
    what,
    unit: 'ms',
    ours: ours_ms,
    peer,
    theirs: theirs_ms ?? null,
    ratio: theirs_ms === undefined ? null : theirs_ms / ours_ms,
    bar: `≤ ${bar_ms} ms`,
    holds: ours_ms <= bar_ms,
  };
}

function medianTime_ms(runs: number, work: () => void): number {
  const times_ms = Array.from({ length: runs }, () => {
    const began_ms = performance.now();
    work();
    return performance.now() - began_ms;
  });
  return times_ms.sort((a, b) => a - b)[Math.floor(runs / 2)]!;
}
