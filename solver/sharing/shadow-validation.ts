/**
 * Would anybody's SLO break (LLM-Mesh §5.3)? The lanes, with the newcomer in them, are run ahead by the very
 * scheduler that runs them live, on estimated times, until no prompt waits any more; what then remains, decode steps
 * without end, is judged in closed form.
 */
import { advance, estimateDecode, type Lane } from './lanes.ts';
import { nextIteration } from './next-iteration.ts';
import type { SharingSettings } from './settings.ts';

/** The paper's three ways in which a newcomer breaks an SLO, and a simulation that found no end. */
export type Violation = 'own_first_token' | 'existing_request' | 'decode_round' | 'undecided';

export type Verdict =
  | { ok: true }
  | {
      ok: false;
      violation: Violation;
      /** By how much, in ms; of a decode round: what it takes beyond the pace. */
      late_ms: number;
      /** The instance whose request would be late. */
      instance: string;
      because: string;
    };

const tolerance_ms = 1e-6;

function hasBackground(lane: Lane): boolean {
  return (lane.background && lane.batch > 0) || lane.prompts.some(({ background }) => background);
}

/** Requests without a promise run in time that promises spare, so that they break none: they are left out. */
function onlyPromised(lane: Lane): boolean {
  lane.prompts = lane.prompts.filter(({ background }) => !background);
  return !lane.background || lane.prompts.length > 0;
}

/**
 * @param lanes are run ahead: hand over copies
 * @param subject the newcomer's id
 * @param start_ms when the device is free: the end of the iteration that runs now
 */
export function validate(
  lanes: readonly Lane[],
  subject: string,
  start_ms: number,
  settings: SharingSettings,
): Verdict {
  if (!settings.shadow_validation) return { ok: true };
  if (lanes.some(hasBackground)) lanes = lanes.filter(onlyPromised);
  // The cheapest test first: at their expected lengths, with every prompt among them, do decode steps keep the pace?
  const round = decodeRound(lanes, settings);
  if (round !== undefined) return round;
  let now_ms = skipRounds(lanes, start_ms, settings);
  for (let left = settings.validation_iterations_max; waiting(lanes); left--) {
    const next = nextIteration(lanes, now_ms, settings);
    if ('at_ms' in next) {
      now_ms = next.at_ms;
      continue;
    }
    if (left <= 0) {
      const lane = lanes.find(({ prompts }) => prompts.length > 0)!;
      return {
        ok: false,
        violation: 'undecided',
        late_ms: 0,
        instance: lane.instance,
        because: `prompts still wait after ${settings.validation_iterations_max} simulated iterations`,
      };
    }
    const lane = lanes[next.lane]!;
    const { prompt } = next;
    now_ms += next.ms;
    if (prompt === undefined) {
      if (!lane.late && now_ms > lane.deadline_ms + tolerance_ms)
        return existing(lane.instance, now_ms - lane.deadline_ms);
    } else if (
      next.tokens === prompt.left_tokens &&
      !prompt.late &&
      now_ms > prompt.deadline_ms + tolerance_ms
    ) {
      const late_ms = now_ms - prompt.deadline_ms;
      if (prompt.request !== subject) return existing(lane.instance, late_ms);
      return {
        ok: false,
        violation: 'own_first_token',
        late_ms,
        instance: lane.instance,
        because: `its first token would come ${whole(late_ms)} ms late`,
      };
    }
    advance(lane, prompt, next.tokens, now_ms, settings);
  }
  return decodeStreams(lanes, now_ms);
}

/** Fewer rounds than this are simulated rather than skipped. */
const rounds_min = 4;

/**
 * Until weights are loaded or KV is restored, only decode steps run: they are not simulated one by one. Every stream
 * gets as many steps, so that the order by headroom, which evens headrooms out, can only do better.
 */
function skipRounds(lanes: readonly Lane[], now_ms: number, settings: SharingSettings): number {
  let until_ms = Number.POSITIVE_INFINITY;
  let round_ms = 0;
  for (const lane of lanes) {
    const ready_ms = lane.ready_at_ms;
    for (const { available_at_ms } of lane.prompts)
      until_ms = Math.min(until_ms, Math.max(ready_ms, available_at_ms));
    if (lane.batch === 0) continue;
    if (ready_ms > now_ms) until_ms = Math.min(until_ms, ready_ms);
    else round_ms += lane.decode_ms;
  }
  const rounds = round_ms === 0 ? 0 : Math.floor((until_ms - now_ms) / round_ms) - 1;
  if (!(rounds >= rounds_min) || rounds === Number.POSITIVE_INFINITY || !decodeStreams(lanes, now_ms).ok)
    return now_ms;
  for (const lane of lanes) {
    if (lane.batch === 0 || lane.ready_at_ms > now_ms) continue;
    lane.deadline_ms += rounds * lane.tpot_ms;
    lane.tokens += rounds * lane.batch;
    lane.growth_tokens = Math.max(0, lane.growth_tokens - rounds * lane.batch);
    estimateDecode(lane, settings);
  }
  return now_ms + rounds * round_ms;
}

function waiting(lanes: readonly Lane[]): boolean {
  for (const lane of lanes) if (lane.prompts.length > 0) return true;
  return false;
}

function existing(instance: string, late_ms: number): Verdict {
  return {
    ok: false,
    violation: 'existing_request',
    late_ms,
    instance,
    because: `a request of ${instance} would wait ${whole(late_ms)} ms too long for a token`,
  };
}

/**
 * The third case: one step of every instance, weighed by the pace each needs, must fit into the time of one token:
 * Σ step/TPOT ≤ 1. Batches hold the prompts that wait too, lengths are those expected (`growth_share`).
 */
function decodeRound(lanes: readonly Lane[], settings: SharingSettings): Verdict | undefined {
  let share = 0;
  let slowest = lanes[0];
  let slowest_share = -1;
  let tightest_ms = Number.POSITIVE_INFINITY;
  for (const lane of lanes) {
    let { batch, tokens, growth_tokens } = lane;
    let tpot_ms = lane.background ? Number.POSITIVE_INFINITY : lane.tpot_ms;
    for (const prompt of lane.prompts) {
      batch++;
      tokens += prompt.done_tokens + prompt.left_tokens;
      growth_tokens += prompt.growth_tokens;
      if (prompt.tpot_ms < tpot_ms) tpot_ms = prompt.tpot_ms;
    }
    if (batch === 0) continue;
    const length = (tokens + settings.growth_share * growth_tokens) / batch;
    const own = (lane.profile.decode_ms(batch, length) * (1 + settings.overestimate)) / tpot_ms;
    share += own;
    if (own > slowest_share) {
      slowest = lane;
      slowest_share = own;
    }
    if (tpot_ms < tightest_ms) tightest_ms = tpot_ms;
  }
  if (share <= 1) return undefined;
  return {
    ok: false,
    violation: 'decode_round',
    late_ms: (share - 1) * tightest_ms,
    instance: slowest!.instance,
    because: `a round of decode steps would take ${whole(share * tightest_ms)} ms where a token is due every ${whole(tightest_ms)} ms`,
  };
}

/**
 * Decode steps only, all ready, a round within the pace: then nobody is ever late where the next step of each comes in
 * time, in the order of their deadlines. For let D(x) be the steps due within x, in ms of work: with one pace T and a
 * round of at most T, D(x + T) ≤ D(x) + T, so x − D(x) never falls from period to period, and the first period decides.
 * With several paces the first period of the slowest is looked at.
 */
function decodeStreams(lanes: readonly Lane[], now_ms: number): Verdict {
  let window_ms = 0;
  const ready = (lane: Lane): boolean => lane.batch > 0 && lane.ready_at_ms <= now_ms;
  for (const lane of lanes) if (ready(lane)) window_ms = Math.max(window_ms, lane.tpot_ms);
  const due: { at_ms: number; lane: Lane }[] = [];
  for (const lane of lanes)
    if (ready(lane))
      for (let at_ms = lane.deadline_ms; at_ms < now_ms + window_ms; at_ms += lane.tpot_ms)
        due.push({ at_ms, lane });
  due.sort((a, b) => a.at_ms - b.at_ms);
  let end_ms = now_ms;
  for (const { at_ms, lane } of due) {
    end_ms += lane.decode_ms;
    if (!lane.late && end_ms > at_ms + tolerance_ms) return existing(lane.instance, end_ms - at_ms);
  }
  return { ok: true };
}

function whole(ms: number): string {
  return Math.ceil(ms).toString();
}
