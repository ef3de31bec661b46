/** Serving as a whole: replicas of one or several kinds behind a dispatcher, and what their users would see. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { type BatchingLimits, type ReplicaRecord, simulateReplica } from './batching.ts';
import { type ConfiguredReplica, type ReplicaConfig, replicaOf } from './deployment.ts';
import type { RequestColumns } from './requests.ts';
import { type Distribution, distributionOf, weightedDistributionOf } from './statistics.ts';

/** Equal replicas that share the requests with the other groups. */
export interface ReplicaGroup extends ReplicaConfig {
  /** Data-parallel degree: how many replicas. */
  dp: number;
  /** Share of requests of one replica, relative to replicas of other groups; 1 if absent. */
  weight?: number;
}

/** Prompts on one group of devices, decoding on another; KV goes over the interconnect. */
export interface Disaggregated {
  prefill: ReplicaGroup;
  decode: ReplicaGroup;
}

export interface ServingReport {
  requests: number;
  /** Too long for any KV cache there; left out of the latencies. */
  refused: number;
  ttft_ms: Distribution;
  /** Per request: time after the first token by tokens after the first; requests of one token are left out. */
  tpot_ms: Distribution;
  e2e_ms: Distribution;
  /** Gaps between a request's tokens, by token. */
  itl_ms: Distribution;
  /** From the first arrival to the last token. */
  duration_s: number;
  requests_per_s: number;
  output_tokens_per_s: number;
  total_tokens_per_s: number;
  kv: { capacity_tokens: number; mean: number; peak: number };
  preemptions: number;
  recomputed_tokens: number;
  /** Mean share of time in which a replica ran steps. */
  busy: number;
  steps: number;
  devices: number;
}

/** A report with the times of every request, in order of arrival. */
export interface ServingResult {
  report: ServingReport;
  arrival_s: Float64Array;
  ttft_s: Float64Array;
  tpot_s: Float64Array;
  e2e_s: Float64Array;
}

interface Simulated {
  replica: ConfiguredReplica;
  /** Row of each of its requests in the workload. */
  rows: Int32Array;
  record: ReplicaRecord;
}

interface Times {
  arrival_s: Float64Array;
  first_token_s: Float64Array;
  finish_s: Float64Array;
}

/**
 * Replicas of all groups, dealt to in turn by weight (smooth weighted round robin, as nginx does it). With a
 * concurrency, that many requests are outstanding at any time and arrival times are not used.
 * @throws what `replicaOf` throws; E_SIMULATION_INPUT where there are no replicas
 */
export function simulateServing(
  groups: readonly ReplicaGroup[],
  requests: RequestColumns,
  { concurrency = 0 }: { concurrency?: number } = {},
): ServingResult {
  const configs = expand(groups);
  const n = requests.arrival_s.length;
  const dealt = deal(
    n,
    configs.map(({ weight }) => weight ?? 1),
  );
  const times = emptyTimes(n);
  const once = onePerGroup('both');
  const simulated = configs.map((config, index) => {
    const share = Math.floor(concurrency / configs.length) + (index < concurrency % configs.length ? 1 : 0);
    if (concurrency > 0 && share === 0) return undefined;
    const rows =
      concurrency > 0 ? dealEvenly(n, index, Math.min(concurrency, configs.length)) : dealt[index]!;
    const replica = withConcurrency(once(config), share);
    const record = simulateReplica(replica.model, pick(requests, rows), replica.limits);
    for (const [at, row] of rows.entries()) {
      times.arrival_s[row] = record.arrival_s[at]!;
      times.first_token_s[row] = record.first_token_s[at]!;
      times.finish_s[row] = record.finish_s[at]!;
    }
    return { replica, rows, record };
  });
  return resultOf(
    requests,
    times,
    simulated.filter((entry) => entry !== undefined),
    configs.length,
  );
}

/**
 * Prompts run on the first group up to their first token; their KV is then sent over the interconnect (or the
 * link, where both groups fit into its domain), and decoding goes on in the second.
 * @throws as simulateServing
 */
export function simulateDisaggregated(
  { prefill, decode }: Disaggregated,
  requests: RequestColumns,
): ServingResult {
  const prefillers = expand([prefill]);
  const decoders = expand([decode]);
  const n = requests.arrival_s.length;
  const times = emptyTimes(n);
  const prefillReplica = onePerGroup('prefill');
  const decodeReplica = onePerGroup('decode');
  times.arrival_s.set(requests.arrival_s);
  const handed_s = new Float64Array(n).fill(Number.NaN);
  const simulated: Simulated[] = [];
  for (const [index, config] of prefillers.entries()) {
    const rows = dealEvenly(n, index, prefillers.length);
    const replica = prefillReplica(config);
    const record = simulateReplica(replica.model, pick(requests, rows), replica.limits);
    simulated.push({ replica, rows, record });
    const transfer = kvTransfer(replica, prefillers.length, decoders);
    for (const [at, row] of rows.entries()) {
      times.first_token_s[row] = record.first_token_s[at]!;
      handed_s[row] = record.first_token_s[at]! + transfer(requests.input_tokens[row]!);
    }
  }
  const order = Int32Array.from(handed_s.keys())
    .filter((row) => !Number.isNaN(handed_s[row]!))
    .sort((a, b) => handed_s[a]! - handed_s[b]!);
  for (const [index, config] of decoders.entries()) {
    const rows = dealEvenly(order.length, index, decoders.length).map((turn) => order[turn]!);
    const replica = decodeReplica(config);
    const record = simulateReplica(
      replica.model,
      pick({ ...requests, arrival_s: handed_s }, rows),
      replica.limits,
    );
    simulated.push({ replica, rows, record });
    for (const [at, row] of rows.entries()) times.finish_s[row] = record.finish_s[at]!;
  }
  return resultOf(requests, times, simulated, prefillers.length + decoders.length);
}

/** Equal replicas share one model of their steps, and what it has worked out. */
function onePerGroup(role: BatchingLimits['role']): (group: ReplicaGroup) => ConfiguredReplica {
  const made = new Map<ReplicaGroup, ConfiguredReplica>();
  return (group) => {
    const replica = made.get(group) ?? replicaOf(group, role);
    made.set(group, replica);
    return replica;
  };
}

function withConcurrency(replica: ConfiguredReplica, concurrency: number): ConfiguredReplica {
  return { ...replica, limits: { ...replica.limits, concurrency } };
}

/** Seconds to send the KV of so many tokens: all devices of a replica send their shares at once. */
function kvTransfer(
  { memory, model }: ConfiguredReplica,
  prefillers: number,
  decoders: readonly ReplicaConfig[],
): (tokens: number) => number {
  const { tp, pp, device, interconnect } = model.input;
  const devices = tp * pp * prefillers + decoders.reduce((sum, config) => sum + config.tp * config.pp, 0);
  const bandwidth =
    devices <= device.link.devices ? device.link.bandwidth_bytes_per_s : interconnect.bandwidth_bytes_per_s;
  return (tokens) => interconnect.latency_s + (tokens * memory.kv_bytes_per_token) / bandwidth;
}

function expand(groups: readonly ReplicaGroup[]): ReplicaGroup[] {
  for (const { dp } of groups)
    if (!Number.isSafeInteger(dp) || dp < 0 || dp > 100_000)
      throw new HpcserveError('E_SIMULATION_INPUT', {
        what: `${dp} replicas cannot be simulated`,
        because: 'a whole number from 0 to 100000 is needed',
      });
  const replicas = groups.flatMap((group) => Array.from({ length: group.dp }, () => group));
  if (replicas.length === 0)
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: 'there are no devices to simulate on',
      because: 'every group has zero replicas',
    });
  return replicas;
}

/** Rows for each of several takers, in turn and by weight. */
function deal(n: number, weights: readonly number[]): Int32Array[] {
  if (weights.every((weight) => weight === weights[0]))
    return weights.map((_, index) => dealEvenly(n, index, weights.length));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const current = weights.map(() => 0);
  const rows: number[][] = weights.map(() => []);
  for (let row = 0; row < n; row++) {
    let best = 0;
    for (let index = 0; index < weights.length; index++) {
      current[index]! += weights[index]!;
      if (current[index]! > current[best]!) best = index;
    }
    current[best]! -= total;
    rows[best]!.push(row);
  }
  return rows.map((list) => Int32Array.from(list));
}

function dealEvenly(n: number, index: number, takers: number): Int32Array {
  return Int32Array.from(
    { length: Math.max(0, Math.ceil((n - index) / takers)) },
    (_, at) => index + at * takers,
  );
}

function pick(requests: RequestColumns, rows: Int32Array): RequestColumns {
  const arrival_s = new Float64Array(rows.length);
  for (let at = 0; at < rows.length; at++) arrival_s[at] = requests.arrival_s[rows[at]!]!;
  return {
    arrival_s,
    input_tokens: rows.map((row) => requests.input_tokens[row]!),
    output_tokens: rows.map((row) => requests.output_tokens[row]!),
  };
}

function emptyTimes(n: number): Times {
  const column = (): Float64Array => new Float64Array(n).fill(Number.NaN);
  return { arrival_s: column(), first_token_s: column(), finish_s: column() };
}

/** What single requests saw, and sums over those that were served. */
interface Served {
  ttft_s: Float64Array;
  tpot_s: Float64Array;
  e2e_s: Float64Array;
  requests: number;
  output_tokens: number;
  total_tokens: number;
  duration_s: number;
}

/** @param outside time outside the engine's steps: before the first token, so it shifts the first and the last alike */
function servedOf(requests: RequestColumns, times: Times, outside: number): Served {
  const n = times.arrival_s.length;
  const served: Served = {
    ttft_s: new Float64Array(n),
    tpot_s: new Float64Array(n),
    e2e_s: new Float64Array(n),
    requests: 0,
    output_tokens: 0,
    total_tokens: 0,
    duration_s: 0,
  };
  let start = Number.POSITIVE_INFINITY;
  let end = 0;
  for (let row = 0; row < n; row++) {
    const first = times.first_token_s[row]!;
    const finish = times.finish_s[row]!;
    const output = requests.output_tokens[row]!;
    served.ttft_s[row] = first - times.arrival_s[row]! + outside;
    served.e2e_s[row] = finish - times.arrival_s[row]! + outside;
    served.tpot_s[row] = output > 1 ? (finish - first) / (output - 1) : Number.NaN;
    if (Number.isNaN(finish)) continue;
    served.requests++;
    served.output_tokens += output;
    served.total_tokens += output + requests.input_tokens[row]!;
    start = Math.min(start, times.arrival_s[row]!);
    end = Math.max(end, finish);
  }
  if (served.requests > 0) served.duration_s = end - start;
  return served;
}

function resultOf(
  requests: RequestColumns,
  times: Times,
  simulated: readonly Simulated[],
  replicas: number,
): ServingResult {
  const outside = simulated[0]!.replica.model.input.calibration.engine.request_s;
  const served = servedOf(requests, times, outside);
  const { ttft_s, tpot_s, e2e_s, duration_s } = served;
  const perSecond = (amount: number): number => (duration_s === 0 ? 0 : amount / duration_s);
  const milliseconds = (values: Float64Array): Distribution =>
    distributionOf(values.map((value) => value * 1e3));
  const sumOf = (value: (record: ReplicaRecord) => number): number =>
    simulated.reduce((sum, { record }) => sum + value(record), 0);
  const gap_s = simulated.flatMap(({ record }) => record.gaps.seconds);
  const gapTokens = simulated.flatMap(({ record }) => record.gaps.tokens);
  return {
    report: {
      requests: times.arrival_s.length,
      refused: sumOf((record) => record.refused),
      ttft_ms: milliseconds(ttft_s),
      tpot_ms: milliseconds(tpot_s),
      e2e_ms: milliseconds(e2e_s),
      itl_ms: weightedDistributionOf(
        gap_s.map((seconds) => seconds * 1e3),
        gapTokens,
      ),
      duration_s,
      requests_per_s: perSecond(served.requests),
      output_tokens_per_s: perSecond(served.output_tokens),
      total_tokens_per_s: perSecond(served.total_tokens),
      kv: {
        capacity_tokens: simulated.reduce((sum, { replica }) => sum + replica.limits.kv_tokens, 0),
        mean: sumOf((record) => record.kv_mean) / replicas,
        peak: Math.max(...simulated.map(({ record }) => record.kv_peak)),
      },
      preemptions: sumOf((record) => record.preemptions.reduce((sum, count) => sum + count, 0)),
      recomputed_tokens: sumOf((record) => record.recomputed_tokens),
      busy: sumOf((record) => (record.end_s === 0 ? 0 : record.busy_s / record.end_s)) / replicas,
      steps: sumOf((record) => record.steps),
      devices: simulated.reduce((sum, { replica }) => sum + replica.config.tp * replica.config.pp, 0),
    },
    arrival_s: times.arrival_s,
    ttft_s,
    tpot_s,
    e2e_s,
  };
}
