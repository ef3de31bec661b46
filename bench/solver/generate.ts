/**
 * Fresh assignment instances by seed. Every model gets a home: some devices of one type, all homes together
 * within the counts, and a request rate that those devices can carry; so every instance has a solution.
 */
import type { AssignmentOption, AssignmentProblem } from '../../solver/assignment/problem.ts';
import { Random } from '../../solver/cp/random.ts';

export interface InstanceShape {
  models: number;
  /** Device types, 1 to 8. */
  types: number;
  /** `single`: a model runs on one type. `split`: its traffic is divided in quarters over several. */
  mode: 'single' | 'split';
  /** `roofline`: costs from a queue in front of a roofline. `uniform`: costs drawn at random. */
  kind: 'roofline' | 'uniform';
  /**
   * Without it the site grows with the models. Else it stays as it is, however many models there are: with
   * many of them some have one or two devices each. `tight`: a home just carries its model's requests, so that
   * little else is possible. `loose`: it is used to 0.7.
   */
  capacity?: 'tight' | 'loose';
  seed: number;
}

interface DeviceType {
  count: number;
  memory_bytes: number;
  flops: number;
  bandwidth_bytes_per_s: number;
  tensor_parallel_max: number;
}

/** GH200, H100, A100, RTX 3090, a CPU socket, L40S, V100, MI250X: round figures of the order of data sheets. */
const deviceTypes: readonly DeviceType[] = [
  { count: 64, memory_bytes: 96e9, flops: 990e12, bandwidth_bytes_per_s: 4.0e12, tensor_parallel_max: 4 },
  { count: 64, memory_bytes: 80e9, flops: 990e12, bandwidth_bytes_per_s: 3.35e12, tensor_parallel_max: 8 },
  { count: 32, memory_bytes: 40e9, flops: 312e12, bandwidth_bytes_per_s: 1.55e12, tensor_parallel_max: 4 },
  { count: 16, memory_bytes: 24e9, flops: 71e12, bandwidth_bytes_per_s: 0.94e12, tensor_parallel_max: 8 },
  { count: 128, memory_bytes: 256e9, flops: 20e12, bandwidth_bytes_per_s: 0.3e12, tensor_parallel_max: 1 },
  { count: 48, memory_bytes: 48e9, flops: 180e12, bandwidth_bytes_per_s: 0.86e12, tensor_parallel_max: 4 },
  { count: 32, memory_bytes: 32e9, flops: 112e12, bandwidth_bytes_per_s: 0.9e12, tensor_parallel_max: 4 },
  { count: 64, memory_bytes: 64e9, flops: 190e12, bandwidth_bytes_per_s: 1.6e12, tensor_parallel_max: 8 },
];

const parameterCounts = [1.5e9, 3e9, 8e9, 13e9, 14e9, 32e9, 70e9] as const;
const quarters = 4;
const batch = 32;
/** A replica that has more to do than this never keeps up. A rounding error below 1 its queue would have no end. */
const load_max = 1 - 1e-9;

interface Workload {
  parameters: number;
  input_tokens: number;
  output_tokens: number;
}

/** Seconds of one decode step and of one prefill of a replica on `tensor` devices; infinite if it does not fit. */
function replicaTimes(
  workload: Workload,
  device: DeviceType,
  tensor: number,
): { step: number; prefill: number } {
  const weights = 2 * workload.parameters;
  if (weights * 1.2 > 0.9 * device.memory_bytes * tensor)
    return { step: Number.POSITIVE_INFINITY, prefill: Number.POSITIVE_INFINITY };
  const speedup = tensor ** 0.9;
  const step =
    Math.max(weights / device.bandwidth_bytes_per_s, (batch * weights) / device.flops) / speedup + 1e-3;
  const prefill = (weights * workload.input_tokens) / (0.5 * device.flops * speedup);
  return { step, prefill };
}

/** Requests a second one replica can carry. */
function replicaRate(workload: Workload, device: DeviceType, tensor: number): number {
  const { step, prefill } = replicaTimes(workload, device, tensor);
  return 1 / ((workload.output_tokens * step) / batch + prefill);
}

export function generateInstance(shape: InstanceShape): AssignmentProblem {
  const random = new Random(shape.seed * 7919 + shape.models * 31 + shape.types);
  const devices = deviceTypes.slice(0, shape.types);
  const counts = devices.map(({ count }) =>
    shape.capacity ? count : Math.max(1, Math.round((count * Math.max(shape.models, 8)) / 16)),
  );
  const homes = homesOf(shape, devices, counts, random);
  const options = homes.map(({ workload, home, devices: homeDevices }) => {
    const rate = bestRate(workload, devices[home]!, homeDevices) * utilisationOf(shape, random);
    const all: AssignmentOption[] = [];
    for (let type = 0; type < devices.length; type++)
      for (let share = shape.mode === 'single' ? quarters : 1; share <= quarters; share++)
        all.push(...optionsOf(shape, workload, devices[type]!, type, counts[type]!, share, rate, random));
    return all;
  });
  return { counts, shares: quarters, options };
}

/** Share of what its home could carry that a model is asked for. */
function utilisationOf({ kind, capacity }: InstanceShape, random: Random): number {
  if (capacity) return capacity === 'tight' ? 0.999 : 0.7;
  return (kind === 'roofline' ? 0.97 : 0.7) * (0.75 + 0.25 * random.unit());
}

interface Home {
  workload: Workload;
  home: number;
  devices: number;
}

function homesOf(
  shape: InstanceShape,
  devices: readonly DeviceType[],
  counts: readonly number[],
  random: Random,
): Home[] {
  // Where devices run out before models do, everyone gets less.
  for (let portion = 2; ; portion *= 0.8) {
    const homes = tryHomes(shape, devices, counts, portion, random);
    if (homes) return homes;
  }
}

const tries_max = 60;

function tryHomes(
  shape: InstanceShape,
  devices: readonly DeviceType[],
  counts: readonly number[],
  portion: number,
  random: Random,
): Home[] | undefined {
  const left = [...counts];
  const homes: Home[] = [];
  for (let tries = 0; homes.length < shape.models; tries++) {
    if (tries === tries_max) return undefined;
    const workload: Workload = {
      parameters: parameterCounts[random.below(parameterCounts.length)]!,
      input_tokens: 300 + random.below(1400),
      output_tokens: 64 + random.below(420),
    };
    const home = random.below(devices.length);
    const share = Math.ceil((portion * counts[home]! * devices.length * random.unit()) / shape.models);
    const taken = Math.min(left[home]!, share);
    if (taken < 1 || bestRate(workload, devices[home]!, taken) === 0) continue;
    left[home]! -= taken;
    homes.push({ workload, home, devices: taken });
    tries = 0;
  }
  return homes;
}

function bestRate(workload: Workload, device: DeviceType, devices: number): number {
  let best = 0;
  for (let tensor = 1; tensor <= device.tensor_parallel_max; tensor *= 2)
    best = Math.max(best, Math.floor(devices / tensor) * replicaRate(workload, device, tensor));
  return best;
}

/** The Pareto front of (devices, cost) over data- and tensor-parallel degrees. */
function optionsOf(
  shape: InstanceShape,
  workload: Workload,
  device: DeviceType,
  type: number,
  count: number,
  share: number,
  rate: number,
  random: Random,
): AssignmentOption[] {
  const cost = new Map<number, number>();
  const offered = (rate * share) / quarters;
  for (let tensor = 1; tensor <= device.tensor_parallel_max; tensor *= 2) {
    const capacity = replicaRate(workload, device, tensor);
    if (capacity === 0) continue;
    const { step, prefill } = replicaTimes(workload, device, tensor);
    for (let replicas = 1; replicas * tensor <= count; replicas++) {
      const load = offered / (replicas * capacity);
      if (load > load_max) continue;
      const latency = (prefill + workload.output_tokens * step) * (1 + load ** 2 / (1 - load));
      const of =
        shape.kind === 'roofline'
          ? Math.ceil(10 * offered * latency)
          : Math.ceil(share * (20 + (2000 * random.unit() ** 2) / (1 + random.unit() * replicas)));
      const taken = replicas * tensor;
      cost.set(taken, Math.min(of, cost.get(taken) ?? Number.POSITIVE_INFINITY));
    }
  }
  let least = Number.POSITIVE_INFINITY;
  return [...cost]
    .sort(([a], [b]) => a - b)
    .flatMap(([taken, of]) => {
      if (of >= least) return [];
      least = of;
      return [{ type, devices: taken, share, cost: of }];
    });
}

const seeded_models = [16, 32, 48, 64, 96] as const;

/**
 * The shape of one of the seeded instances that the bench and the tests share: one type and several a model,
 * both kinds of costs, tight and loose sites of 5 and 8 types in all combinations, up to 96 models on a site of 304
 * or more devices.
 */
export function seededShape(index: number): Required<InstanceShape> {
  return {
    mode: index & 1 ? 'split' : 'single',
    kind: index & 2 ? 'uniform' : 'roofline',
    capacity: index & 4 ? 'loose' : 'tight',
    models: seeded_models[(index >> 3) % seeded_models.length]!,
    types: index % 3 === 2 ? 8 : 5,
    seed: index,
  };
}

export function shapeName({ mode, kind, capacity, models, types, seed }: InstanceShape): string {
  return `${[mode, kind, ...(capacity ? [capacity] : [])].join('-')}-M${models}-N${types}-s${seed}`;
}
