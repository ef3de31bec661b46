/**
 * Which server starts a stage (FlexPipe Eq. 13): of those that hosted the model,
 *
 *   s* = argmax  w_t · e^(−λ (t_now − t_s)) + w_g · |g_s ∩ G_avail|
 *
 * The first term stands for parameters that are still in the server's memory. Every choice leaves a mark in the
 * resource graph, so that the stages of one scaling event spread over paths instead of meeting on one.
 */
import {
  type LoadSource,
  type PredictedLoad,
  predictLoad,
  type ResourceGraph,
  type ResourceServer,
  type ScalingMark,
} from './resource-graph.ts';

export interface AffinityWeights {
  /** w_t. Higher: where the model was lately. */
  recent: number;
  /** w_g, by device. Higher: where many devices are free. */
  device: number;
  /** λ, per second. Higher: host memory is taken to be given to others sooner. */
  decay_per_s: number;
  /**
   * By second of the predicted load; the paper leaves open how contention and affinity weigh. Higher: less contention.
   */
  load: number;
}

export const affinity_weights: AffinityWeights = {
  recent: 1,
  device: 0.05,
  decay_per_s: 1 / 1800,
  load: 0.1,
};

/** A server that could take a stage. */
export interface AffinityCandidate {
  server: ResourceServer;
  /** Devices that are free and have the memory. */
  devices_free: number;
  /** When it last hosted the model, t_s; absent: never, and it is not in H_i. */
  hosted_ms?: number;
  /** Where it would read the parameters. */
  source: LoadSource;
}

export interface AffinityChoice {
  server: string;
  source: LoadSource;
  load: PredictedLoad;
  because: string;
}

/** The score of Eq. 13; a server without history has the term of its devices alone. */
export function affinityScore(
  { devices_free, hosted_ms }: Pick<AffinityCandidate, 'devices_free' | 'hosted_ms'>,
  now_ms: number,
  { recent, device, decay_per_s }: AffinityWeights,
): number {
  const warm = hosted_ms === undefined ? 0 : recent * Math.exp((-decay_per_s * (now_ms - hosted_ms)) / 1000);
  return warm + device * devices_free;
}

export interface AffinityQuestion {
  graph: ResourceGraph;
  /** Loads that are under way. */
  marks: readonly ScalingMark[];
  now_ms: number;
  candidates: readonly AffinityCandidate[];
  /** Parameters of each stage that is to start. */
  stage_bytes: readonly number[];
  weights?: AffinityWeights;
}

export interface AffinityAnswer {
  /** One for each stage; fewer where devices run out. */
  choices: readonly AffinityChoice[];
  /** Marks of the new loads, beside those that were there. */
  marks: readonly ScalingMark[];
  /** Until the last stage is loaded. */
  load_s: number;
}

/** Servers for the stages one by one, each on a device of its own. */
export function chooseServers(question: AffinityQuestion): AffinityAnswer {
  const { graph, now_ms, candidates, stage_bytes, weights = affinity_weights } = question;
  const marks = [...question.marks];
  const left = candidates.map(({ devices_free }) => devices_free);
  const choices: AffinityChoice[] = [];
  for (const bytes of stage_bytes) {
    let best: { at: number; score: number; load: PredictedLoad } | undefined;
    for (const [at, candidate] of candidates.entries()) {
      if (left[at]! < 1) continue;
      const load = predictLoad(graph, marks, now_ms, { ...candidate, bytes });
      const free = { ...candidate, devices_free: left[at]! };
      const score = affinityScore(free, now_ms, weights) - weights.load * load.load_s;
      if (best === undefined || score > best.score) best = { at, score, load };
    }
    if (best === undefined) break;
    const { server, source, hosted_ms } = candidates[best.at]!;
    left[best.at]!--;
    marks.push({ server: server.id, source, end_ms: now_ms + 1000 * best.load.load_s });
    const history =
      hosted_ms === undefined
        ? 'never had the model'
        : `had the model ${Math.round((now_ms - hosted_ms) / 1000)} s ago`;
    choices.push({
      server: server.id,
      source,
      load: best.load,
      because: `${server.id} ${history}; loads from ${source} in ${best.load.load_s.toFixed(2)} s, by the ${best.load.bottleneck}`,
    });
  }
  return { choices, marks, load_s: Math.max(0, ...choices.map(({ load }) => load.load_s)) };
}
