/** Between two looks, ms. Lower: hangs are found sooner; higher: less is read of /proc. */
export const look_ms = 500;
/**
 * Questions that must fail in a row. Lower: hangs are found sooner; higher: a server that is busy for a while is let
 * be.
 */
const failures_max = 3;
/**
 * An engine whose streams get nothing for so many of its usual gaps, and at least so long, has stalled where its
 * processes rest. Lower: streams move sooner; higher: fewer of those that would have gone on.
 */
const usual_gaps = 20;
const quiet_ms_min = 1500;
/** The same while little is known of its gaps, or a prompt is being read meanwhile. */
const quiet_unknown_ms = 10_000;
const quiet_reading_ms = 5000;
/** The same where one of its processes has ended since a token came: what is left seldom goes on. */
const quiet_ended_ms = 500;
/** Nothing has come of any request, and its processes rest: not every engine computes on this host's cores. */
const unanswered_ms = 30_000;
/** Where its processes work and nothing explains at what: compilations of a shape that is new take that long. */
const quiet_busy_ms = 60_000;
/** Share of one core below which its processes rest: questions about health and metrics cost a few percent. */
const rest_share = 0.1;
/** Looks in which a process is stopped: the agent may be continued a moment before it, where the job was suspended. */
const stopped_looks = 2;

export interface HealthBounds {
  /**
   * Until an engine that does not answer is taken for hung: three questions in a row, each waited for twice as long as
   * the pause before it. Lower: requests fail over sooner; higher: tolerates servers that are held up by long requests.
   */
  health_s: number;
  /**
   * Until an engine that computes nothing, although requests run, is; and until one that has stalled is started again.
   * Lower: sooner; higher: tolerates long prefills.
   */
  stall_s: number;
}

/** What was seen of an engine since the look before. */
export interface HealthLook {
  /** What came of a question about its health; absent where none has ended. */
  health?: HealthAnswer | undefined;
  /** Requests that it has not answered to their end; here and below without those whose clients do not read. */
  in_flight: number;
  /** Of these, streams whose answer has begun, if with no more than its head. */
  streams: number;
  /** Of all, those of which no token has come: their prompts wait or are read, or their answers come as a whole. */
  unanswered: number;
  /** Streams that have given a token. */
  flowing: number;
  /** Its usual longest gap between tokens, ms; absent: not known yet. */
  usual_gap_ms?: number | undefined;
  /** Bytes that came of its answers, since ever. */
  answer_bytes: number;
  /** A number of its own that changes while it computes; absent where it has none. */
  activity?: number | undefined;
  /** Of its processes that are stopped (SIGSTOP), what they are called. */
  stopped: readonly string[];
  /** Of those that were a part of it, what they are called that have ended since the look before. */
  ended: readonly string[];
  /** Processor time of all its processes, since ever. */
  cpu_ms: number;
  /** It builds kernels: a compiler of its runs, or its log says so. */
  is_compiling: boolean;
  /** A question for one token was answered: asked of an engine that has stalled. */
  has_revived?: boolean | undefined;
}

export type HealthAnswer =
  | { is: 'well' }
  /** Why not. `answered`: it said so itself. */
  | { is: 'failed'; why: string; answered: boolean };

/** `stalled`: it gets no requests, and is watched; `hung`: it is ended. */
export type HealthVerdict = { is: 'well' } | { is: 'stalled' | 'hung'; why: string };

/** Of an engine that has stalled. */
interface Stall {
  why: string;
  /** In which it has done nothing. */
  looks: number;
  isStopped: boolean;
  /** It has answered since its processes were continued. */
  wasWell: boolean;
}

const well: HealthVerdict = { is: 'well' };

/**
 * Whether a wrapped engine that lives also works. Three ways in which it may not: its server answers no more; it
 * answers and no token comes, which is soon believed where one of its processes has ended; one of them is stopped. All
 * are counted in looks of the agent's own timer, so
 * that a job that was suspended as a whole, or a clock that jumps, is no hang. Pure.
 */
export class EngineHealth {
  /** Between two questions about its health, and how long each is waited for. */
  readonly interval_ms: number;
  readonly timeout_ms: number;
  readonly #stall_ms: number;
  #before: HealthLook | undefined;
  #failures = 0;
  /** Looks since a question was answered well, or a token came. */
  #unheard = 0;
  /** Of these, in which its processes worked. */
  #unheard_busy = 0;
  #stopped = 0;
  /** Looks in which requests ran and nothing came of them. */
  #quiet = 0;
  #quiet_busy = 0;
  #quiet_compiling = 0;
  /** Processes that have ended, while no token has come since. */
  #ended: readonly string[] = [];
  #stall: Stall | undefined;

  constructor({ health_s, stall_s }: HealthBounds) {
    this.interval_ms = (health_s * 1000) / (3 * failures_max);
    this.timeout_ms = 2 * this.interval_ms;
    this.#stall_ms = stall_s * 1000;
  }

  look(look: HealthLook): HealthVerdict {
    const isFirst = this.#before === undefined;
    const before = this.#before ?? look;
    this.#before = look;
    const hasMoved = look.answer_bytes !== before.answer_bytes || look.activity !== before.activity;
    const isBusy = look.cpu_ms - before.cpu_ms > rest_share * look_ms;
    if (!isFirst) this.#unheard++;
    const deaf = this.#listen(look, hasMoved, isBusy);
    if (deaf !== undefined) return { is: 'hung', why: deaf };
    this.#stopped = look.stopped.length > 0 ? this.#stopped + 1 : 0;
    // What came in the same moment may have been its last.
    if (look.ended.length > 0) this.#ended = look.ended;
    else if (hasMoved) this.#ended = [];
    if (this.#stall) return this.#watch(this.#stall, look, hasMoved);
    if (this.#stopped >= stopped_looks)
      return this.#stalls(nameProcesses(look.stopped, 'is stopped', 'are stopped'), true);
    if (!isFirst) this.#count(look, before, hasMoved, isBusy);
    const why = this.#whyQuiet(look);
    return why === undefined ? well : this.#stalls(why, false);
  }

  /** Why its server is held for dead: questions fail, and nothing says that it is only busy. */
  #listen({ health }: HealthLook, hasMoved: boolean, isBusy: boolean): string | undefined {
    if (hasMoved || health?.is === 'well') {
      this.#failures = 0;
      this.#unheard = 0;
      this.#unheard_busy = 0;
      return undefined;
    }
    if (isBusy) this.#unheard_busy++;
    if (health?.is !== 'failed') return undefined;
    this.#failures++;
    if (this.#failures < failures_max) return undefined;
    const isWorking = !health.answered && 2 * this.#unheard_busy > this.#unheard;
    if (isWorking && this.#unheard * look_ms < this.#stall_ms) return undefined;
    return `${this.#failures} health checks failed in a row: ${health.why}`;
  }

  #count(look: HealthLook, before: HealthLook, hasMoved: boolean, isBusy: boolean): void {
    const runs = look.in_flight > 0 && before.in_flight > 0;
    // Of a request that is not streamed only the engine's own count tells.
    const tells = look.activity !== undefined || look.flowing > 0 || look.streams === look.in_flight;
    if (!runs || hasMoved || !tells) {
      this.#quiet = 0;
      this.#quiet_busy = 0;
      this.#quiet_compiling = 0;
      return;
    }
    this.#quiet++;
    if (isBusy) this.#quiet_busy++;
    if (look.is_compiling) this.#quiet_compiling++;
  }

  #whyQuiet(look: HealthLook): string | undefined {
    const quiet_ms = this.#quiet * look_ms;
    const rests = this.#quiet_busy * 10 <= this.#quiet;
    const limit_ms = Math.min(this.#stall_ms, this.#patience_ms(look, rests));
    if (quiet_ms < limit_ms || this.#quiet === 0) return undefined;
    const what =
      look.flowing > 0
        ? `has given no token to its ${look.flowing} running stream(s)`
        : 'has computed nothing';
    const usual =
      look.flowing > 0 && look.usual_gap_ms !== undefined
        ? ` (its usual gap is below ${Math.ceil(look.usual_gap_ms)} ms)`
        : '';
    if (this.#ended.length > 0 && look.flowing > 0)
      return `${nameProcesses(this.#ended, 'has ended', 'have ended')}, and no token came to its ${look.flowing} running stream(s) for ${quiet_ms / 1000} s`;
    const answers = this.#failures === 0 ? 'it answers health checks, and' : 'it';
    return `${answers} ${what} for ${quiet_ms / 1000} s${usual} while ${look.in_flight} request(s) run; its processes ${rests ? 'rest' : 'work'}`;
  }

  /** How long it may be quiet, by what explains it. */
  #patience_ms({ flowing, unanswered, usual_gap_ms }: HealthLook, rests: boolean): number {
    if (flowing === 0) return rests && unanswered > 0 ? unanswered_ms : Number.POSITIVE_INFINITY;
    const usual_ms =
      usual_gap_ms === undefined ? quiet_unknown_ms : Math.max(quiet_ms_min, usual_gaps * usual_gap_ms);
    if (this.#ended.length > 0) return Math.max(quiet_ended_ms, 2 * (usual_gap_ms ?? 0));
    if (rests) return unanswered > 0 ? Math.max(usual_ms, quiet_reading_ms) : usual_ms;
    // A long prompt of another request, or a compilation.
    if (unanswered > 0 || this.#quiet_compiling > 0) return Number.POSITIVE_INFINITY;
    return Math.max(usual_ms, quiet_busy_ms);
  }

  #stalls(why: string, isStopped: boolean): HealthVerdict {
    this.#stall = { why, looks: Math.max(this.#quiet, 1), isStopped, wasWell: false };
    return this.#judged(this.#stall);
  }

  /** It goes on by itself where it computes again; one that was stopped, where it is continued and answers. */
  #watch(stall: Stall, look: HealthLook, hasMoved: boolean): HealthVerdict {
    stall.looks++;
    if (this.#stopped === 0 && look.health?.is === 'well') stall.wasWell = true;
    const goesOn = stall.isStopped ? stall.wasWell : hasMoved || look.has_revived === true;
    if (this.#stopped > 0) stall.wasWell = false;
    if (!goesOn || this.#stopped > 0) return this.#judged(stall);
    this.#stall = undefined;
    this.#quiet = 0;
    this.#quiet_busy = 0;
    this.#quiet_compiling = 0;
    return well;
  }

  #judged({ why, looks }: Stall): HealthVerdict {
    return { is: looks * look_ms < this.#stall_ms ? 'stalled' : 'hung', why };
  }
}

function nameProcesses(names: readonly string[], one: string, several: string): string {
  return names.length === 1
    ? `its process ${names[0]} ${one}`
    : `its processes ${names.join(', ')} ${several}`;
}
