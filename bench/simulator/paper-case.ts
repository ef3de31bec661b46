/**
 * LLMFabric §5, Table 1: three models on 32 GH200 and 24 A100. The paper tells arrival rates and gives lengths
 * as ranges of means (in 600 to 1170, out 64 to 530) without saying which model has which; it does not tell
 * TP degrees, nodes or durations. Here: nodes of four GPUs (Alps), TP up to four, normal lengths with a
 * deviation of a quarter of the mean, and three choices of means. Ours is the plan that the product's `place`
 * makes of it, TP included; the others get the best TP of each kind.
 */
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { LatencyModel } from '../../solver/simulator/latency.ts';
import { type ReplicaGroup, simulateServing } from '../../solver/simulator/simulate.ts';
import { drawRequests } from '../../solver/simulator/workload.ts';
import type { BenchResult } from '../result.ts';
import { productPlan } from './product-plan.ts';

const models = [
  { name: 'llama-2-13b', rate_per_s: 110 },
  { name: 'codellama-34b', rate_per_s: 185.5 },
  { name: 'llama-3.3-70b', rate_per_s: 221 },
] as const;
const kinds = ['GH200', 'A100'] as const;
const available = [32, 24] as const;
/** Of each node. */
const devices_per_node = 4;

/** Devices of each kind, by model. */
type Allocation = readonly (readonly [gh200: number, a100: number])[];
const plans: Readonly<Record<string, Allocation>> = {
  memP: [
    [0, 4],
    [0, 16],
    [32, 4],
  ],
  paper: [
    [0, 6],
    [16, 10],
    [16, 8],
  ],
};

interface Scenario {
  name: string;
  /** Mean tokens in and out, by model. */
  lengths: readonly (readonly [input: number, output: number])[];
}
const scenarios: readonly Scenario[] = [
  {
    name: 'middle of the ranges for all',
    lengths: [
      [885, 297],
      [885, 297],
      [885, 297],
    ],
  },
  {
    name: 'larger models get longer requests',
    lengths: [
      [600, 64],
      [885, 297],
      [1170, 530],
    ],
  },
  {
    name: 'larger models get shorter requests',
    lengths: [
      [1170, 530],
      [885, 297],
      [600, 64],
    ],
  },
];

/** Requests that a model's devices take, by kind, and with which TP. */
interface Choice {
  devices: readonly [number, number];
  tp: readonly [number, number];
  /** Requests per second the devices sustain. */
  capacity: number;
}

const requests_simulated = 6000;

/** Replicas of one model that are alike. */
interface Part {
  kind: (typeof kinds)[number];
  tp: number;
  dp: number;
}

export function paperCase(log: (line: string) => void): BenchResult[] {
  return scenarios.flatMap((scenario) => {
    const tables = models.map((_, index) => capacities(index, scenario));
    const all: Record<string, Part[][]> = { ours: ours(scenario, log) };
    for (const [name, allocation] of Object.entries(plans))
      all[name] = allocation.map((devices, index) => partsOf(tables[index]!.get(devices.join(','))!));
    const outcomes = Object.entries(all).map(([name, parts]) => ({ name, parts, ...run(parts, scenario) }));
    log('');
    log(
      `${scenario.name}: ${models.map(({ name }, i) => `${name} ${scenario.lengths[i]!.join('→')}`).join(', ')}`,
    );
    log(
      `${'plan'.padEnd(7)}${models.map(({ name }) => name.padEnd(28)).join('')}output tokens/s   mean E2E s   p95 E2E s`,
    );
    for (const outcome of outcomes)
      log(
        `${outcome.name.padEnd(7)}${outcome.parts.map((own) => describe(own).padEnd(28)).join('')}${outcome.tokens_per_s.toFixed(0).padStart(15)}${outcome.e2e_mean_s.toFixed(2).padStart(13)}${outcome.e2e_p95_s.toFixed(2).padStart(12)}`,
      );
    const of = (name: string): (typeof outcomes)[number] =>
      outcomes.find((outcome) => outcome.name === name)!;
    return ['paper', 'memP'].map((peer): BenchResult => {
      const [mine, theirs] = [of('ours').e2e_mean_s, of(peer).e2e_mean_s];
      return {
        what: `LLMFabric Table 1, mean E2E, ${scenario.name}`,
        unit: 's',
        ours: mine,
        peer: peer === 'paper' ? 'the paper’s plan' : 'memP',
        theirs,
        ratio: theirs / mine,
        bar: 'ratio ≥ 1',
        holds: theirs / mine >= 0.999,
      };
    });
  });
}

/** For one model: the best TP, and what it sustains, for every number of devices of each kind. */
function capacities(index: number, scenario: Scenario): Map<string, Choice> {
  const [input_tokens, output_tokens] = scenario.lengths[index]!;
  const perKind = kinds.map((kind, at) => {
    const byTp = [1, 2, 4].flatMap((tp) => {
      const rate = maxRate(models[index]!.name, kind, tp, { input_tokens, output_tokens });
      return rate === undefined ? [] : [{ tp, rate }];
    });
    return Array.from({ length: available[at]! + 1 }, (_, devices) =>
      byTp.reduce(
        (top, { tp, rate }) => {
          const capacity = Math.floor(devices / tp) * rate;
          return capacity > top.capacity ? { tp, capacity } : top;
        },
        { tp: 0, capacity: 0 },
      ),
    );
  });
  const table = new Map<string, Choice>();
  for (const [gh200, a] of perKind[0]!.entries())
    for (const [a100, b] of perKind[1]!.entries())
      table.set(`${gh200},${a100}`, {
        devices: [gh200, a100],
        tp: [a.tp, b.tp],
        capacity: a.capacity + b.capacity,
      });
  return table;
}

/** Undefined where the model does not fit. */
function maxRate(
  name: string,
  device: string,
  tp: number,
  lengths: { input_tokens: number; output_tokens: number },
): number | undefined {
  try {
    return latency(name, device, tp).maxRate(lengths);
  } catch (error) {
    if ((error as { code?: string }).code === 'E_SIMULATION_MEMORY') return undefined;
    throw error;
  }
}

function latency(name: string, device: string, tp: number): LatencyModel {
  return new LatencyModel({ model: findModel(name), device: findDevice(device), engine: 'vllm', tp, pp: 1 });
}

/** What the product plans for these rates and lengths, by model. */
function ours({ lengths }: Scenario, log: (line: string) => void): Part[][] {
  const asked = models.map(({ name, rate_per_s }, index) => {
    const [input_tokens, output_tokens] = lengths[index]!;
    return { name, rate_per_s, input_tokens, output_tokens };
  });
  const { groups, search } = productPlan(
    asked,
    kinds.map((device, at) => ({
      device,
      nodes: available[at]! / devices_per_node,
      per_node: devices_per_node,
    })),
  );
  log(`(our plan: ${search.status}${search.gap === undefined ? '' : `, gap ${percent(search.gap)}`})`);
  return groups.map((own) =>
    own.map(({ device, tensor, replicas }) => ({
      kind: kinds.find((kind) => device.startsWith(kind))!,
      tp: tensor,
      dp: replicas,
    })),
  );
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;

function partsOf({ devices, tp }: Choice): Part[] {
  return kinds.flatMap((kind, at): Part[] =>
    tp[at] === 0 ? [] : [{ kind, tp: tp[at]!, dp: Math.floor(devices[at]! / tp[at]!) }],
  );
}

/** The whole plan through the simulator: every model's requests on its devices, for the same span of time. */
function run(
  parts: readonly (readonly Part[])[],
  scenario: Scenario,
): { tokens_per_s: number; e2e_mean_s: number; e2e_p95_s: number } {
  const total = models.reduce((sum, { rate_per_s }) => sum + rate_per_s, 0);
  let tokens = 0;
  const latencies: number[] = [];
  for (const [index, { name, rate_per_s }] of models.entries()) {
    const [input, output] = scenario.lengths[index]!;
    const requests = drawRequests({
      rate_per_s,
      arrival_cv: 1,
      requests: Math.round((requests_simulated * rate_per_s) / total),
      input: { kind: 'normal', mean: input, deviation: input / 4 },
      output: { kind: 'normal', mean: output, deviation: output / 4 },
      seed: 7 + index,
    });
    const groups = parts[index]!.map(
      ({ kind, tp, dp }): ReplicaGroup => ({
        model: findModel(name),
        device: findDevice(kind),
        engine: 'vllm',
        tp,
        pp: 1,
        dp,
        weight: latency(name, kind, tp).maxRate({ input_tokens: input, output_tokens: output }),
      }),
    );
    const { report, e2e_s } = simulateServing(groups, requests);
    tokens += report.output_tokens_per_s;
    latencies.push(...e2e_s);
  }
  latencies.sort((a, b) => a - b);
  return {
    tokens_per_s: tokens,
    e2e_mean_s: latencies.reduce((sum, value) => sum + value, 0) / latencies.length,
    e2e_p95_s: latencies[Math.floor(0.95 * latencies.length)]!,
  };
}

function describe(parts: readonly Part[]): string {
  return parts.map(({ kind, tp, dp }) => `${tp * dp}×${kind}/tp${tp}`).join('+');
}
