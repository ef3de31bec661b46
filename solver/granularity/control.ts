/**
 * Which granularity a model's pipelines are to have: the control loop of FlexPipe §6 (Algorithm 1) and §7 as one pure
 * function, asked every so often with what was measured.
 *
 *   demand   rate now, its gradient, what waits, and the peak of late
 *   options  for each granularity: as many instances as the demand needs (Eq. 5), of those that there are devices for
 *   score    Eq. 4, with latencies that include the time until the option serves (`latencyOver_s`)
 *   urgency  where work waits, nothing coarser than Eq. 11 says is started; Eq. 12 keeps the deadline
 *   uneven   a stage whose queue stands out, for a time or in a stall: as many stages, cut by what they take
 *   steady   hysteresis: a gain, held for a time; consolidation only to what carries the peak of late; and a
 *            consolidation that had to be taken back makes the next one wait twice as long
 */
import type { ArrivalStatistics } from './arrival-windows.ts';
import type { CongestedStage } from './congested-stages.ts';
import {
  bestCvOf,
  type Coordination,
  granularityScore,
  instanceRate_per_s,
  instancesFor,
  queueLength_requests,
  type ScalingSigmoid,
  type ScoreWeights,
  scalingStages,
  servesInTime,
} from './equations.ts';
import { type Granularity, passTime_s } from './granularity.ts';

export interface GranularitySettings {
  score: ScoreWeights;
  coordination: Coordination;
  scaling: ScalingSigmoid;
  /** η_1: stages that are best at a CV of 1. */
  stages_at_one: number;
  /** Share of its rate that a pipeline is to have in use. Lower: shorter waits; higher: fewer devices. */
  utilization_max: number;
  /** What waits is to be gone within so long. Lower: refined sooner and finer. */
  drain_s: number;
  /** How far the gradient is looked ahead. Lower: reacts later; higher: follows rises that stop. */
  lead_s: number;
  /** Span over which a change has to pay. Lower: fast starts count; higher: the end state counts. */
  horizon_s: number;
  /**
   * Standard errors that the rate of the shortest window and the peak are taken to be too high by, as counts of
   * arrivals that come independently. Lower: refined sooner; higher: an even load is not taken for a surge.
   */
  rate_errors: number;
  /** Consolidated only to what carries so many times the peak of late. Higher: fewer changes, more devices. */
  consolidate_margin: number;
  /** Another option has to score so many times as much. Higher: fewer changes. */
  gain_min: number;
  /** For so long. Refining is for bursts, and consolidating saves: the second waits longer. */
  refine_hold_ms: number;
  consolidate_hold_ms: number;
  /** At most so long, however often a consolidation was taken back. */
  consolidate_hold_ms_max: number;
  /** A stage is congested for so long before its pipeline is cut anew. Higher: fewer changes. */
  recut_hold_ms: number;
}

export const granularity_settings: GranularitySettings = {
  score: { throughput_weight: 0.5, cv_tolerance: 8 },
  coordination: { base: 1, per_stage: 0.002 },
  scaling: { stages_max: 32, offset: 31, steepness: 1 },
  stages_at_one: 4,
  utilization_max: 0.85,
  drain_s: 2,
  lead_s: 2,
  horizon_s: 60,
  rate_errors: 0,
  consolidate_margin: 1,
  gain_min: 1.1,
  refine_hold_ms: 1000,
  consolidate_hold_ms: 60_000,
  consolidate_hold_ms_max: 3_600_000,
  recut_hold_ms: 60_000,
};

/** So many pipelines of one granularity. */
export interface Fleet {
  stages: number;
  instances: number;
}

/** A granularity that the model can be given. */
export interface GranularityOption {
  granularity: Granularity;
  /** Devices that could hold its stages, those that the model has among them. */
  devices_max: number;
  /** Until it would serve: what is missing is loaded, from host memory where it is there. */
  load_s: number;
}

export interface GranularityQuestion {
  now_ms: number;
  options: readonly GranularityOption[];
  current: Fleet;
  /** Devices that are always on (`alwaysOnDevices`): no fleet leaves them without use. Absent: none. */
  devices_floor?: number;
  /** A change is under way: nothing is decided until it is over. */
  changing: boolean;
  arrivals: ArrivalStatistics;
  /** Passes that one request takes, on average. */
  passes_per_request: number;
  /** Requests that no micro-batch has taken. */
  waiting_requests: number;
  /** Q_max of Eq. 11. */
  waiting_max: number;
  /** A stall is on (`StallMonitor`). */
  stalled: boolean;
  /** Stages whose queue stands out (`congestedStages`), the worst first; absent: none, or nobody says. */
  congested?: readonly CongestedStage[];
  /** By what its stages take, another cut into as many is faster. */
  uneven?: boolean;
  /** Time from arrival in which a request is to be answered, T of Eq. 12. */
  deadline_s: number;
  settings: GranularitySettings;
  /** As the last decision gave it; absent: the first. */
  memory?: ControlMemory | undefined;
}

/** What one decision hands to the next. */
export interface ControlMemory {
  /** A change of this kind has been better since then, to whichever fleet. */
  candidate?: { action: GranularityDecision['action']; since_ms: number };
  /** The last change, and whether it took devices away. */
  changed?: { at_ms: number; consolidated: boolean };
  /** A stage has been congested since then. */
  congested_ms?: number | undefined;
  /** When the pipeline was cut anew last. */
  recut_ms?: number | undefined;
  consolidate_hold_ms: number;
}

export interface ScoredOption extends Fleet {
  score: number;
  latency_s: number;
  /** It carries the demand within `utilization_max`. */
  carries: boolean;
  /** Passes per second that it makes at most. */
  rate_per_s: number;
}

export interface GranularityDecision {
  /** `recut`: the same fleet, cut elsewhere. */
  action: 'keep' | 'refine' | 'consolidate' | 'scale' | 'recut';
  /** What is to be there. */
  fleet: Fleet;
  because: string;
  scored: readonly ScoredOption[];
  memory: ControlMemory;
}

export function decideGranularity(question: GranularityQuestion): GranularityDecision {
  const { memory } = question;
  // Whether it goes on is decided here.
  const decision = decideFleet({ ...question, memory: memory && { ...memory, congested_ms: undefined } });
  if (memory?.recut_ms !== undefined) decision.memory.recut_ms = memory.recut_ms;
  const [worst] = question.congested ?? [];
  if (worst === undefined || question.changing || decision.action !== 'keep') return decision;
  return relieve(question, worst, decision);
}

/** §9.3: the number of stages is right, and one of them holds the others up. */
function relieve(
  { now_ms, settings, memory, uneven = false, stalled }: GranularityQuestion,
  worst: CongestedStage,
  kept: GranularityDecision,
): GranularityDecision {
  if (!uneven)
    return {
      ...kept,
      because: `${kept.because}; ${worst.because}, and no other cut is known to be faster`,
    };
  const congested_ms = memory?.congested_ms ?? now_ms;
  // A stall is not waited out. What the last cut came to has to be measured first in any case.
  const since_ms = stalled ? (memory?.recut_ms ?? Number.NEGATIVE_INFINITY) : congested_ms;
  if (now_ms - since_ms < settings.recut_hold_ms)
    return {
      ...kept,
      because: `${kept.because}; ${worst.because}: cut anew if that lasts for ${seconds(settings.recut_hold_ms)}`,
      memory: { ...kept.memory, congested_ms },
    };
  return {
    ...kept,
    action: 'recut',
    because: `${worst.because}${stalled ? ', stalled' : ''}: cut anew by what stages take`,
    memory: { ...kept.memory, recut_ms: now_ms },
  };
}

function decideFleet(question: GranularityQuestion): GranularityDecision {
  const { settings, current, arrivals, passes_per_request, waiting_requests } = question;
  const memory = question.memory ?? { consolidate_hold_ms: settings.consolidate_hold_ms };
  const wanted_per_s = demand_per_s(question);
  const scored = scoreOptions(question, wanted_per_s);
  const keep = (because: string, next: ControlMemory = withoutCandidate(memory)): GranularityDecision => ({
    action: 'keep',
    fleet: current,
    because,
    scored,
    memory: next,
  });
  if (question.changing) return keep('a change is under way', memory);
  const own = scored.find((option) => sameFleet(option, current));
  const top = scored.reduce<ScoredOption | undefined>(
    (best, option) => (best === undefined || isBetter(option, best) ? option : best),
    undefined,
  );
  if (top === undefined) return keep('no granularity has enough devices');
  const target = urgent(question, scored, top);
  if (sameFleet(target, current)) return keep(`${describeFleet(current)} score best`);
  const action = actionOf(current, target);
  if (action === 'consolidate') {
    const peak_per_s = arrivals.rate_peak_per_s * passes_per_request;
    if (!arrivals.peak_seen) return keep('arrivals were not watched for long enough to take devices away');
    if (
      settings.consolidate_margin * peak_per_s >
      settings.utilization_max * fleetRate_per_s(question, target)
    )
      return keep(`${describeFleet(target)} would not carry the peak of late`);
  }
  const idle = own?.carries === true && isAmple(question);
  if (action !== 'consolidate' && idle) return keep(`${describeFleet(current)} carry the peak of late`);
  // Without a way to carry what comes, the gain is certain.
  const isRelief = own !== undefined && !own.carries && (target.carries || isFaster(target, own));
  const gain = own === undefined || isRelief ? Infinity : target.score / own.score;
  if (gain < settings.gain_min) return keep(`${describeFleet(target)} gain too little`);
  const since_ms = memory.candidate?.action === action ? memory.candidate.since_ms : question.now_ms;
  const held_ms = question.now_ms - since_ms;
  const hold_ms = holdOf_ms(question, memory, action);
  if (held_ms < hold_ms)
    return keep(`${describeFleet(target)} have been better for ${seconds(held_ms)} of ${seconds(hold_ms)}`, {
      ...memory,
      candidate: { action, since_ms },
    });
  const asked = `${(wanted_per_s / passes_per_request).toFixed(1)} requests/s wanted, CV ${arrivals.cv.toFixed(1)}, ${waiting_requests} waiting`;
  return {
    action,
    fleet: { stages: target.stages, instances: target.instances },
    because: `${asked}${question.stalled ? ', stalled' : ''}: ${describeFleet(target)} in place of ${describeFleet(current)}${gain < Infinity ? `, score ×${gain.toFixed(2)}` : ''}`,
    scored,
    memory: afterChange(question, memory, action),
  };
}

/** Passes per second that are to be made: what comes, what will have come, and what waits beyond a micro-batch. */
function demand_per_s(question: GranularityQuestion): number {
  const { arrivals, settings, passes_per_request, waiting_requests, options, current } = question;
  const own = options.find(({ granularity }) => granularity.stages === current.stages)?.granularity;
  const usual = own === undefined ? 0 : own.batch_max / own.stages;
  const rising = Math.max(0, arrivals.gradient_per_s2) * settings.lead_s;
  const backlog_per_s = Math.max(0, waiting_requests - usual) / settings.drain_s;
  return (surely_per_s(question, arrivals.rate_per_s) + rising + backlog_per_s) * passes_per_request;
}

/** A rate less what it may be too high by: n arrivals in a window are known to within √n. */
function surely_per_s({ arrivals, settings }: GranularityQuestion, rate_per_s: number): number {
  const window_ms = arrivals.windows[0]?.window_ms;
  if (window_ms === undefined) return rate_per_s;
  return Math.max(0, rate_per_s - settings.rate_errors * Math.sqrt((1000 * rate_per_s) / window_ms));
}

/**
 * One fleet of each granularity, with as many instances as the demand and the peak of late need, and the present one
 * as it is.
 */
function scoreOptions(question: GranularityQuestion, wanted_per_s: number): ScoredOption[] {
  const { settings, current, options, arrivals, passes_per_request } = question;
  const { coordination, utilization_max } = settings;
  const peak_per_s = surely_per_s(question, arrivals.rate_peak_per_s);
  const sized_per_s = Math.max(wanted_per_s, peak_per_s * passes_per_request);
  const judged = options.flatMap((option) => {
    const { granularity, devices_max } = option;
    const { stages } = granularity;
    const isOwn = stages === current.stages;
    const room = Math.floor(devices_max / stages);
    if (room < 1 && !isOwn) return [];
    const needed = Math.max(
      instancesFor(sized_per_s / utilization_max, granularity, coordination),
      Math.floor((question.devices_floor ?? 0) / stages),
    );
    const fleets = [{ stages, instances: Math.min(Math.max(1, room), needed) }];
    if (isOwn && fleets[0]!.instances !== current.instances) fleets.push({ ...current });
    return fleets.map((fleet) => ({
      ...fleet,
      rate_per_s: fleetRate_per_s(question, fleet),
      latency_s: latencyOver_s(question, wanted_per_s, sameFleet(current, fleet) ? undefined : option, fleet),
    }));
  });
  const served = judged.map(({ rate_per_s }) => Math.min(rate_per_s, wanted_per_s));
  const rate_max_per_s = Math.max(0, ...served);
  const latency_min_s = Math.min(...judged.map(({ latency_s }) => latency_s));
  return judged.map(({ stages, instances, rate_per_s, latency_s }, index) => ({
    stages,
    instances,
    latency_s,
    rate_per_s,
    carries: rate_per_s * utilization_max >= wanted_per_s,
    score: granularityScore(
      {
        rate_per_s: served[index]!,
        rate_max_per_s,
        latency_s,
        latency_min_s,
        cv: arrivals.cv,
        cv_best: bestCvOf(stages, settings.stages_at_one),
      },
      settings.score,
    ),
  }));
}

/**
 * L_k: mean latency of a request over the horizon. Until a change has loaded, the present fleet serves, and what it
 * does not serve waits for the new one.
 */
function latencyOver_s(
  question: GranularityQuestion,
  wanted_per_s: number,
  change: GranularityOption | undefined,
  fleet: Fleet,
): number {
  const { horizon_s } = question.settings;
  const after_s = latencyWith_s(question, wanted_per_s, fleet, horizon_s);
  if (change === undefined) return after_s;
  const meanwhile_s = latencyWith_s(question, wanted_per_s, question.current, change.load_s);
  const share = Math.min(1, change.load_s / horizon_s);
  return share * meanwhile_s + (1 - share) * after_s;
}

/**
 * Passes of one request, and its wait by Eq. 1; above capacity the wait grows over `span_s`, and this is its mean.
 */
function latencyWith_s(
  question: GranularityQuestion,
  wanted_per_s: number,
  fleet: Fleet,
  span_s: number,
): number {
  const { options, arrivals, passes_per_request, settings } = question;
  const granularity = options.find((option) => option.granularity.stages === fleet.stages)?.granularity;
  const { horizon_s } = settings;
  if (granularity === undefined) return horizon_s;
  const rate_per_s = fleetRate_per_s(question, fleet);
  const utilization = rate_per_s > 0 ? wanted_per_s / rate_per_s : Infinity;
  const requests = queueLength_requests(utilization, fleet.instances, arrivals.cv, 1);
  const waiting_s = (requests * passes_per_request) / rate_per_s;
  const growing_s = (Math.max(0, utilization - 1) * span_s) / 2;
  return passes_per_request * passTime_s(granularity) + Math.min(waiting_s, horizon_s / 2) + growing_s;
}

function fleetRate_per_s({ options, settings }: GranularityQuestion, { stages, instances }: Fleet): number {
  const granularity = options.find((option) => option.granularity.stages === stages)?.granularity;
  return granularity === undefined ? 0 : instances * instanceRate_per_s(granularity, settings.coordination);
}

/**
 * What is there beyond the peak of late, from which a finer pipeline would only cost hops. Higher: refined sooner.
 */
const ample_share = 1.25;

/** Whether the present fleet carries the peak of late with something to spare. */
function isAmple(question: GranularityQuestion): boolean {
  const { arrivals, passes_per_request, settings, current } = question;
  const peak_per_s = Math.max(arrivals.rate_per_s, arrivals.rate_peak_per_s) * passes_per_request;
  return ample_share * peak_per_s <= settings.utilization_max * fleetRate_per_s(question, current);
}

/** So many times the rate is worth a change where nothing carries what comes. */
const relief_min = 1.1;

function isFaster(a: ScoredOption, b: ScoredOption): boolean {
  return a.rate_per_s >= relief_min * b.rate_per_s;
}

/**
 * Options that carry what comes before those that do not, of which the fastest: which CV they are good at counts for
 * nothing while a queue grows. Then the score; then the fewest devices.
 */
function isBetter(a: ScoredOption, b: ScoredOption): boolean {
  if (a.carries !== b.carries) return a.carries;
  if (!a.carries && isFaster(a, b) !== isFaster(b, a)) return isFaster(a, b);
  if (a.score !== b.score) return a.score > b.score;
  return a.stages * a.instances < b.stages * b.instances;
}

/**
 * While work waits that the present fleet does not carry, the coarsest that is started is the one of Eq. 11, or the
 * next finer one that answers what waits in time (Eq. 12): small stages are loaded sooner.
 */
function urgent(
  question: GranularityQuestion,
  scored: readonly ScoredOption[],
  top: ScoredOption,
): ScoredOption {
  const { current, options, arrivals, waiting_requests, waiting_max, deadline_s, settings } = question;
  if (actionOf(current, top) === 'consolidate' || waiting_requests === 0) return top;
  const asked = scalingStages(arrivals.cv, waiting_requests, waiting_max, settings.scaling);
  const stages_min = nearestStages(scored, asked);
  const inTime = ({ stages, instances }: ScoredOption): boolean =>
    servesInTime(
      deadline_s,
      options.find(({ granularity }) => granularity.stages === stages)!.load_s,
      fleetRate_per_s(question, { stages, instances }) / question.passes_per_request,
      waiting_requests,
    );
  const finer = scored
    .filter((option) => option.carries && option.stages >= stages_min)
    .sort((a, b) => a.stages - b.stages);
  if (top.stages >= stages_min && inTime(top)) return top;
  const found = finer.find(inTime) ?? finer[0];
  return found !== undefined && found.stages > top.stages ? found : top;
}

/** The granularity that is nearest by ratio. */
function nearestStages(scored: readonly ScoredOption[], asked: number): number {
  const distance = ({ stages }: ScoredOption): number => Math.abs(Math.log(stages / asked));
  return scored.reduce((best, option) => (distance(option) < distance(best) ? option : best)).stages;
}

function actionOf(current: Fleet, target: Fleet): GranularityDecision['action'] {
  const [before, after] = [current, target].map(({ stages, instances }) => stages * instances);
  if (after! < before!) return 'consolidate';
  if (target.stages < current.stages) return 'consolidate';
  return target.stages > current.stages ? 'refine' : 'scale';
}

function holdOf_ms(
  { stalled, settings }: GranularityQuestion,
  memory: ControlMemory,
  action: GranularityDecision['action'],
): number {
  if (action === 'consolidate') return memory.consolidate_hold_ms;
  return stalled ? 0 : settings.refine_hold_ms;
}

/**
 * Damping: a consolidation that is taken back within twice its hold came too soon, and the next waits twice as long.
 * One that stood makes the next wait half as long again.
 */
function afterChange(
  { now_ms, settings }: GranularityQuestion,
  { changed, consolidate_hold_ms }: ControlMemory,
  action: GranularityDecision['action'],
): ControlMemory {
  const consolidated = action === 'consolidate';
  let hold_ms = consolidate_hold_ms;
  if (changed?.consolidated === true && !consolidated)
    hold_ms =
      now_ms - changed.at_ms < 2 * hold_ms
        ? Math.min(settings.consolidate_hold_ms_max, 2 * hold_ms)
        : Math.max(settings.consolidate_hold_ms, hold_ms / 2);
  return { changed: { at_ms: now_ms, consolidated }, consolidate_hold_ms: hold_ms };
}

function withoutCandidate({ changed, consolidate_hold_ms }: ControlMemory): ControlMemory {
  return changed === undefined ? { consolidate_hold_ms } : { changed, consolidate_hold_ms };
}

function sameFleet(a: Fleet, b: Fleet): boolean {
  return a.stages === b.stages && a.instances === b.instances;
}

function describeFleet({ stages, instances }: Fleet): string {
  return `${instances} × ${stages} stages`;
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1)} s`;
}
