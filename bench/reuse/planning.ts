/**
 * The planner alone, on pools of a thousand regions: how long it takes, and what it moves against merging everything.
 */
import { planLoad } from '../../solver/reuse/load-plan.ts';
import type { RegionView } from '../../solver/reuse/region-view.ts';
import { seededRandom } from '../../solver/simulator/random.ts';

const regions_count = 1000;
const rounds = 400;

export interface Planning {
  median_ms: number;
  worst_ms: number;
  moved_bytes: number;
  /** Of everything that stays, had all free space been merged. */
  merged_bytes: number;
}

export function measurePlanning(seed: number): Planning {
  const random = seededRandom(seed);
  const times: number[] = [];
  let moved_bytes = 0;
  let merged_bytes = 0;
  for (let round = 0; round < rounds; round++) {
    const { regions, wanted } = situation(random);
    const started = performance.now();
    const plan = planLoad(regions, wanted);
    times.push(performance.now() - started);
    if (!plan) continue;
    const evicted = new Set(plan.evict);
    for (const { region } of plan.moves) moved_bytes += regions[region]!.bytes;
    regions.forEach(({ kind, bytes }, index) => {
      if (kind === 'resident' && !evicted.has(index)) merged_bytes += bytes;
    });
  }
  times.sort((a, b) => a - b);
  return { median_ms: times[rounds / 2]!, worst_ms: times.at(-1)!, moved_bytes, merged_bytes };
}

/**
 * A pool of many models after churn: tensors of 0.1 to 64 MB, every eighth region free, a model of 60 tensors to come.
 */
function situation(random: () => number): { regions: RegionView[]; wanted: number[] } {
  const size = (): number => 64 * Math.ceil((1e5 * 640 ** random()) / 64);
  const models = Array.from({ length: 12 }, () => ({ probability: random(), bandwidth: 2e9 }));
  const regions: RegionView[] = [];
  for (let index = 0; regions.length < regions_count; index++) {
    const bytes = size();
    const { probability, bandwidth } = models[Math.floor(index / 40) % models.length]!;
    regions.push(
      index % 8 === 0 && regions.at(-1)?.kind !== 'free'
        ? { kind: 'free', bytes }
        : {
            kind: 'resident',
            bytes,
            evict_cost_s: (probability * bytes) / bandwidth,
            move_cost_s: bytes / 1e10,
          },
    );
  }
  return { regions, wanted: Array.from({ length: 60 }, size) };
}
