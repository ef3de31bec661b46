import { quietArrivals, reference_default_ms } from '../../solver/granularity/arrival-windows.ts';
import { type ControlMemory, decideGranularity } from '../../solver/granularity/control.ts';
import {
  combineArrivals,
  type LiveLoad,
  type LivePipeline,
  liveQuestion,
} from '../../solver/granularity/live-question.ts';
import { cv_assumed } from '../../solver/placement/stage-sharing.ts';
import { type MeasuredDemand, readDemand } from '../../spec/demand.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { type ModelSpec, stageBounds } from '../../spec/model-yaml.ts';
import { defaultSlo, type PlacementQuestion, unitsOfJob } from '../../spec/plan.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Operations } from '../runner/operations.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { AnswerStalls } from './answer-stalls.ts';
import { changePipeline, pipelineQuestion } from './change-pipeline.ts';
import { type SeenPipeline, writeGranularityFile } from './granularity-file.ts';
import { type HeldPipeline, heldPipelines, withHosted } from './held-pipelines.ts';
import { livePipeline } from './live-pipeline.ts';
import { StageLoads } from './stage-loads.ts';

/** What is known of the models' files and of measured stage times is read again after so long, ms. */
const question_ms = 60_000;
/** After a change that was refused: until the next is tried, ms; twice as long each time, up to the second. */
const retry_ms = 60_000;
const retry_ms_max = 3_600_000;
/** The same where the agent of a job that has just come may not be known yet to that of the first one. */
const retry_soon_ms = 5000;
/** A job that leaves is gone by then, ms: what has fewer stages for longer has them by hand. */
const by_hand_ms = 60_000;
/** A gateway that has written nothing for so long says nothing of what comes now. */
const silent_ms = 15_000;

/** What one gateway says of a model. */
type GatewayDemand = MeasuredDemand & { gateway: number; started_ms: number; measured_ms: number };

/** What is remembered of a pipeline between two looks. */
interface Watched {
  memory?: ControlMemory;
  changing?: { to: number; because: string };
  last?: SeenPipeline['last'];
  retry_at_ms: number;
  refusals: number;
  /** When nodes last had a stage of it. */
  hosted: Map<string, number>;
  /** A job of a pipeline with one number of stages is not there, and its stages are on other devices meanwhile. */
  isShort?: boolean;
  /** Since when it has fewer stages though all of its jobs are there: one of them leaves, or it is so by hand. */
  merged_since_ms?: number;
}

interface WantedChange {
  to: number;
  because: string;
  /** Of the model's arrivals. */
  cv: number;
  /** After a first refusal. */
  retry_ms: number;
}

/** What is remembered of the answers of a model, which any of its pipelines may have given. */
interface WatchedAnswers {
  stalls: AnswerStalls;
  /** Of its pipelines, as they were at the last look. */
  cuts: string;
}

/**
 * Gives pipelines as many stages as their load asks for, between the bounds of model.yaml: looks at arrivals as
 * gateways measure them, lets `solver/granularity` decide, and has the coordinator's agent change the pipeline while
 * it answers. Where model.yaml gives one number, a pipeline has fewer while a job of it is away, and gets that number
 * again once it is back. A change takes its time and holds up nobody: one at a time for each pipeline, beside the
 * rounds of the keeper.
 */
export class GranularityKeeper {
  readonly #operations: Operations;
  readonly #emit: (event: ProgressEvent) => void;
  readonly #watched = new Map<string, Watched>();
  /** By deployment and model. */
  readonly #answers = new Map<string, WatchedAnswers>();
  readonly #questions = new Map<
    string,
    { generation: number; read_ms: number; question: PlacementQuestion }
  >();
  readonly #lives = new WeakMap<PlacementQuestion, Map<string, LivePipeline | undefined>>();
  readonly #seen = new Map<string, SeenPipeline>();
  readonly #changes = new Set<Promise<void>>();
  readonly #loads = new StageLoads();
  #written = '';

  constructor(operations: Operations, emit: (event: ProgressEvent) => void) {
    this.#operations = { ...operations, emit: () => {} };
    this.#emit = emit;
  }

  /** Decides for the pipelines of one deployment, and begins what is to be changed. */
  async look(state: DeploymentState, observation: Observation): Promise<void> {
    const { models } = state.spec;
    if (models.every((model) => stageBounds(model).stages_max === 1)) return;
    const held = heldPipelines(state, observation);
    this.#forgetOthers(state, held);
    if (held.length === 0) return;
    for (const model of models) {
      const own = held.filter(({ unit }) => unit.model.name === model.name);
      if (own.length === 0) continue;
      const { stages_min, stages_max } = stageBounds(model);
      if (stages_min === stages_max) {
        for (const pipeline of own) await this.#restore(state, pipeline);
        continue;
      }
      const question = await this.#questionOf(state);
      const demands = this.#demandsOf(model);
      const stalls = this.#stallsOf(state.name, model.name, own, demands);
      for (const pipeline of own)
        this.#lookAt(state, model, pipeline, { replicas: own.length, demands, stalls }, question);
    }
    this.#write();
  }

  /** Waits until no change is under way. */
  async settled(): Promise<void> {
    await Promise.all(this.#changes);
  }

  #lookAt(
    state: DeploymentState,
    model: ModelSpec,
    held: HeldPipeline,
    of: { replicas: number; demands: readonly GatewayDemand[]; stalls: AnswerStalls },
    question: PlacementQuestion,
  ): void {
    const { now_ms } = this.#operations;
    const now = now_ms();
    const key = `${state.name} ${held.unit.unit}`;
    const watched = this.#watch(key);
    const pipeline = withHosted(held, watched.hosted, now);
    const live = this.#liveOf(pipeline, model, question);
    const { replicas, demands, stalls } = of;
    const stalled = stalls.now !== undefined;
    const load = this.#loadOf(state, model, demands);
    if (load === undefined || live === undefined) return;
    const { queues } = pipeline;
    const changing = watched.changing !== undefined;
    const asked = liveQuestion(now, live, { ...load, replicas, changing, stalled, queues }, watched.memory);
    const decision = decideGranularity(asked);
    watched.memory = decision.memory;
    const { stages } = decision.fleet;
    let { because } = decision;
    if (watched.changing !== undefined) because = watched.changing.because;
    else if (decision.action !== 'keep' && now < watched.retry_at_ms)
      because = `${because}; the last change was refused, the next is tried in ${Math.ceil((watched.retry_at_ms - now) / 1000)} s`;
    else if (decision.action !== 'keep') {
      const wanted = { to: stages, because, cv: asked.arrivals.cv, retry_ms };
      this.#begin(state, pipeline, wanted, question, watched);
    }
    const { stages_min, stages_max } = stageBounds(model);
    const seen: SeenPipeline = {
      deployment: state.name,
      unit: pipeline.unit.unit,
      model: model.name,
      stages: pipeline.stages.length,
      stages_min,
      stages_max,
      looked_ms: now,
      rate_per_s: asked.arrivals.rate_per_s,
      cv: asked.arrivals.cv,
      gradient_per_s2: asked.arrivals.gradient_per_s2,
      waiting: asked.waiting_requests,
      because,
    };
    if (watched.changing !== undefined) seen.changing_to = watched.changing.to;
    if (watched.last !== undefined) seen.last = watched.last;
    const [congested] = asked.congested ?? [];
    if (congested !== undefined) seen.congested_stage = congested.stage;
    if (asked.stalled) seen.stalled_ms = stalls.now!.began_ms;
    this.#seen.set(key, seen);
  }

  #watch(key: string): Watched {
    const watched = this.#watched.get(key) ?? { retry_at_ms: 0, refusals: 0, hosted: new Map() };
    this.#watched.set(key, watched);
    return watched;
  }

  /** Who asked for fewer stages by hand, while all of its jobs were there, keeps them. */
  async #restore(state: DeploymentState, pipeline: HeldPipeline): Promise<void> {
    if (pipeline.unit.model.parallel.jobs === undefined) return;
    const watched = this.#watch(`${state.name} ${pipeline.unit.unit}`);
    const to = pipeline.unit.stages!.length;
    const now = this.#operations.now_ms();
    const { merged_since_ms = now } = watched;
    const isByHand = now - merged_since_ms >= by_hand_ms;
    if (pipeline.stages.length >= to) {
      delete watched.isShort;
      delete watched.merged_since_ms;
    } else if (!pipeline.isWhole) {
      if (!isByHand) watched.isShort = true;
    } else if (!watched.isShort) watched.merged_since_ms = merged_since_ms;
    else if (!watched.changing && now >= watched.retry_at_ms) {
      const because = `model.yaml asks for ${to}, and all of its jobs are there again`;
      const question = await this.#questionOf(state);
      const wanted = { to, because, cv: cv_assumed, retry_ms: retry_soon_ms };
      this.#begin(state, pipeline, wanted, question, watched);
    }
  }

  #begin(
    state: DeploymentState,
    pipeline: HeldPipeline,
    wanted: WantedChange,
    question: PlacementQuestion,
    watched: Watched,
  ): void {
    const { to, because } = wanted;
    watched.changing = { to, because };
    const from = pipeline.stages.length;
    const change = this.#change(state, pipeline, wanted, question, watched).finally(() => {
      watched.last = { at_ms: this.#operations.now_ms(), from, to, because, ...watched.last };
      delete watched.changing;
      this.#changes.delete(change);
    });
    delete watched.last;
    this.#changes.add(change);
  }

  /** What goes wrong is said, and tried again later: the pipeline serves as it was. */
  async #change(
    state: DeploymentState,
    pipeline: HeldPipeline,
    { to, because, cv, retry_ms: again_ms }: WantedChange,
    question: PlacementQuestion,
    watched: Watched,
  ): Promise<void> {
    const { unit } = pipeline.unit;
    const from = pipeline.stages.length;
    const at_ms = this.#operations.now_ms();
    try {
      const { pause_ms, duration_ms } = await changePipeline(
        this.#operations,
        this.#loads.plan(pipeline, to, question, at_ms, cv),
      );
      watched.refusals = 0;
      // What is measured is of other stages from now on.
      this.#questions.delete(state.name);
      const event = { deployment: state.name, unit, from, to, because, pause_ms, duration_ms };
      this.#emit({ at_ms, kind: 'refactored', ...event });
    } catch (thrown) {
      if (this.#operations.signal.aborted) return;
      const error = HpcserveError.from(thrown);
      const refused = `${[error.message, ...error.because].join(': ')} [${error.code}]`;
      watched.last = { at_ms, from, to, because, refused };
      watched.retry_at_ms =
        this.#operations.now_ms() + Math.min(retry_ms_max, again_ms * 2 ** watched.refusals);
      watched.refusals++;
      const message = `${unit} of ${state.name} keeps its ${from} stages (${to === from ? 'another cut is better' : `${to} are better`}: ${because}): ${refused}`;
      this.#emit({ at_ms, kind: 'warning', message });
    }
  }

  /** Cuts are worked out once for each question and number of stages. */
  #liveOf(pipeline: HeldPipeline, model: ModelSpec, question: PlacementQuestion): LivePipeline | undefined {
    const known = this.#lives.get(question) ?? new Map<string, LivePipeline | undefined>();
    this.#lives.set(question, known);
    const key = `${pipeline.unit.unit} ${pipeline.stages.length}`;
    if (!known.has(key)) known.set(key, livePipeline(pipeline, model, question));
    return known.get(key);
  }

  /** As gateways wrote it last, however long ago. */
  #demandsOf(model: ModelSpec): GatewayDemand[] {
    const names = new Set([model.name, ...model.aliases]);
    const files = readDemand(this.#operations.store.layout.root);
    return [...files].flatMap(([gateway, { started_ms, measured_ms, models }]) =>
      models.flatMap((each) =>
        names.has(each.model) ? [{ ...each, gateway, started_ms, measured_ms }] : [],
      ),
    );
  }

  /** Of gateways that said something lately. */
  #lately(demands: readonly GatewayDemand[]): GatewayDemand[] {
    const now_ms = this.#operations.now_ms();
    return demands.filter(({ measured_ms }) => now_ms - measured_ms < silent_ms);
  }

  /** Nobody has asked the model anything for as long as peaks are remembered. One that died has requests for good. */
  #isQuiet(demands: readonly GatewayDemand[]): boolean {
    const now_ms = this.#operations.now_ms();
    return demands.every(({ asked_ms, in_flight, measured_ms }) => {
      const last_ms = in_flight > 0 ? measured_ms : asked_ms;
      return now_ms - last_ms >= reference_default_ms;
    });
  }

  /**
   * Stalls of a model's answers. What is normal is forgotten when its pipelines have changed, whoever changed them. One
   * that is over is told, with how long it was.
   */
  #stallsOf(
    deployment: string,
    model: string,
    pipelines: readonly HeldPipeline[],
    demands: readonly GatewayDemand[],
  ): AnswerStalls {
    const key = `${deployment} ${model}`;
    const cuts = JSON.stringify(pipelines.map(({ unit, stages }) => [unit.unit, stages]));
    const known = this.#answers.get(key);
    const { stalls } = known ?? { stalls: new AnswerStalls() };
    if (known && known.cuts !== cuts) stalls.reset();
    this.#answers.set(key, { stalls, cuts });
    const told = this.#lately(demands).flatMap(({ gateway, started_ms, answers }) =>
      answers ? [{ gateway, started_ms, answers }] : [],
    );
    const over = stalls.observe(told);
    if (over?.recovered_ms !== undefined) {
      const { began_ms, recovered_ms, baseline_ms } = over;
      const at_ms = this.#operations.now_ms();
      const lasted_ms = recovered_ms - began_ms;
      this.#emit({ at_ms, kind: 'stall_over', deployment, model, lasted_ms, baseline_ms });
    }
    return stalls;
  }

  /**
   * Undefined where no gateway has said anything of the model lately, and it was asked not long before, or may be asked
   * through gateways of other sites.
   */
  #loadOf(
    { spec }: DeploymentState,
    model: ModelSpec,
    demands: readonly GatewayDemand[],
  ): Pick<LiveLoad, 'arrivals' | 'in_flight' | 'deadline_s'> | undefined {
    const heard = this.#lately(demands);
    const deadline_s = (model.slo.ttft_ms ?? defaultSlo.ttft_ms) / 1000;
    const arrivals = combineArrivals(heard.flatMap((each) => each.arrivals ?? []));
    if (arrivals === undefined)
      return spec.share === undefined && this.#isQuiet(demands)
        ? { arrivals: quietArrivals(), in_flight: 0, deadline_s }
        : undefined;
    return { arrivals, in_flight: heard.reduce((sum, { in_flight }) => sum + in_flight, 0), deadline_s };
  }

  /** Files are not looked into with every round. */
  async #questionOf(state: DeploymentState): Promise<PlacementQuestion> {
    const now = this.#operations.now_ms();
    const known = this.#questions.get(state.name);
    if (known && known.generation === state.generation && now - known.read_ms < question_ms)
      return known.question;
    const question = await pipelineQuestion(this.#operations, state);
    this.#questions.set(state.name, { generation: state.generation, read_ms: now, question });
    return question;
  }

  /**
   * Nothing is said of a pipeline that is not there, and one that is planned no more is forgotten. Behind a change
   * agents may not agree yet on who has which stage: what came of it outlives that.
   */
  #forgetOthers({ name, launches }: DeploymentState, held: readonly HeldPipeline[]): void {
    const keysOf = (units: readonly { unit: string }[]): string[] =>
      units.map(({ unit }) => `${name} ${unit}`);
    const there = new Set(keysOf(held.map(({ unit }) => unit)));
    const wanted = launches.filter(({ superseded }) => !superseded);
    const planned = new Set(wanted.flatMap((launch) => keysOf(unitsOfJob(launch.planned))));
    for (const [key, { changing }] of this.#watched) {
      if (!key.startsWith(`${name} `) || there.has(key) || changing !== undefined) continue;
      this.#seen.delete(key);
      if (!planned.has(key)) this.#watched.delete(key);
    }
  }

  /** Written where what is said has changed; the times of looks alone are no news. */
  #write(): void {
    const pipelines = [...this.#seen.values()];
    const news = JSON.stringify(
      pipelines.map(({ stages, because, changing_to, last, congested_stage, stalled_ms }) => [
        ...[stages, because, changing_to, last, congested_stage, stalled_ms],
      ]),
    );
    if (news === this.#written) return;
    this.#written = news;
    writeGranularityFile(this.#operations.store.layout, pipelines);
  }
}
