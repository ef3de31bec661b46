import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { version } from '../../../host/version.ts';
import { SessionIdentity } from '../../../mesh/index.ts';
import {
  type EvacuationPeer,
  type EvacuationStep,
  evacuationDefaults,
  planEvacuation,
} from '../../../solver/evacuation/evacuation.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { MovesReport } from '../../../spec/moves-report.ts';
import { headers } from '../../../spec/wire.ts';
import { answerKvRequest } from '../../transfer/control-http.ts';
import { KvSource } from '../../transfer/kv-source.ts';
import { KvTarget } from '../../transfer/kv-target.ts';
import type { TransferOptions } from '../../transfer/transfer-options.ts';
import type { Models } from '../models.ts';
import { AgentPeers, type ListedPeer } from './agent-peers.ts';
import { moveAnswer } from './answer-move.ts';
import { GonePeers, gone_look_ms } from './gone-peers.ts';
import { KvArrivals } from './kv-arrivals.ts';
import { type AliveAnswer, aliveAnswers } from './leaving-answers.ts';
import { ModelPaces } from './model-paces.ts';
import { MovableModels } from './movable-models.ts';
import { fabrics_default, type MovesPlace } from './moves-place.ts';
import { PromptHandovers } from './prompt-handovers.ts';
import { StageRowMoves } from './stage-row-moves.ts';

/** Answers that leave at once. Lower: each stands still for less; higher: more of the link is used. */
const at_once_max = 4;
/** Of a link that was not used yet. Lower: fewer go by KV where time is short; higher: more begin that do not end. */
const rate_supposed_bytes_per_s = 250e6;
/** For which an answer stands still that moves, before any did. Lower: more of them are moved for others' sake. */
const pause_supposed_ms = 250;
/**
 * A peer answers what room it has between two iterations. Lower: answers leave sooner where one hangs; higher: one that
 * answers a little late is counted on for the first of them, too.
 */
const room_ms = 1000;
/** A replacement may serve soon. Lower: it is found sooner; higher: the agent is asked less often. */
const peers_again_ms = 250;
/** The rest of the time is for those whose KV cannot go, and for the end of the worker. */
const reserve_ms = 500;

interface MoverOptions {
  models: Models;
  place: MovesPlace & { session_id: string };
  /** Of the device. */
  pool_bytes: number;
  /** Least time of an iteration, where the device's speed is declared. */
  step_ms_min: number;
  /** Of the libraries that compute. */
  library_version: string;
  isDraining(): boolean;
  /** Something works worse than it should. */
  warn(notice: HpcserveError): void;
  /** What there is to report changed. */
  changed(report: MovesReport): void;
}

interface Ends {
  source: KvSource;
  target: KvTarget;
}

/** What is known of peers while answers leave. */
interface Evacuation {
  models: ReadonlySet<string>;
  because: string;
  until_ms: number;
  peers: ListedPeer[];
  rooms: Map<string, Map<string, { places: number; kv_tokens: number }>>;
  /** Peers that did not take an answer, by answer. */
  refusals: Map<number, string[]>;
  /** On their way. */
  leaving: Set<number>;
  moved: number;
}

/**
 * Moves running answers of this worker to others with their keys and values, and takes those that come: where the node
 * is to go, or a model is to leave its device. Who goes where and in which order is decided in `solver/evacuation`.
 */
export class AnswerMover {
  readonly #options: MoverOptions;
  readonly #movable: MovableModels;
  readonly #arrivals: KvArrivals;
  readonly #agent: AgentPeers;
  readonly #rows: StageRowMoves;
  readonly #handovers: PromptHandovers;
  readonly #nodes = new Map<string, string>();
  readonly #gone = new GonePeers();
  #sweeper: NodeJS.Timeout | undefined;
  #ends: Promise<Ends> | undefined;
  #moved = 0;
  #pauses_ms = 0;
  #recomputed = 0;
  #last_because: string | undefined;
  #closing = false;

  constructor(options: MoverOptions) {
    this.#options = options;
    const { models, place, library_version, pool_bytes } = options;
    this.#movable = new MovableModels(models, `${version} ${library_version}`, pool_bytes);
    const paces = new ModelPaces(options.step_ms_min);
    this.#arrivals = new KvArrivals(this.#movable, {
      isDraining: () => options.isDraining(),
      step_s: (model) => paces.of(model).step_s,
      onChange: () => this.#told(),
    });
    this.#agent = new AgentPeers(place.socket, place.session_id);
    this.#rows = new StageRowMoves(this.#movable, this.#agent);
    models.onRows = async (message) => {
      const { source } = await this.#open();
      await this.#rows.send(source, message).finally(() => this.#told());
    };
    this.#handovers = new PromptHandovers({
      models,
      movable: this.#movable,
      agent: this.#agent,
      paces,
      source: async () => (await this.#open()).source,
      goesTo: ({ session_id, node }) => this.#nodes.set(session_id, node),
      warn: (notice) => !this.#closing && options.warn(notice),
      changed: () => this.#told(),
    });
    models.onSubmitted = (submission) => this.#handovers.submitted(submission);
    models.onEnded = (id) => this.#handovers.ended(id);
    models.onStep = (step) => {
      paces.observe(step);
      this.#handovers.stepped(step.name);
    };
    models.onArrivedBegan = (kv, cached_tokens, tokens) => this.#arrivals.began(kv, cached_tokens, tokens);
  }

  /** A peer says something about KV that comes. */
  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const peer = request.headers[headers.peer];
    if (typeof peer !== 'string' || this.#closing)
      throw new HpcserveError('E_KV_MESSAGE', { what: 'nobody proved to have said this' });
    const { target } = await this.#open();
    await answerKvRequest(target, peer, request, response);
  }

  /**
   * Has the answers of models go on elsewhere, with KV where there is time and room. Those for which there is none
   * stay: whoever asked for it gives them away by their tokens in the end.
   * @param awaits_peers where nobody else serves them yet, somebody may in the time that is left
   * @returns how many have moved
   */
  async evacuate(
    models: readonly string[],
    left_ms: number,
    because: string,
    awaits_peers = false,
  ): Promise<number> {
    const evacuation: Evacuation = {
      models: new Set(models),
      because,
      until_ms: performance.now() + left_ms - reserve_ms,
      peers: [],
      rooms: new Map(),
      refusals: new Map(),
      leaving: new Set(),
      moved: 0,
    };
    try {
      if (!(await this.#findRooms(evacuation, awaits_peers))) return 0;
      await Promise.all(Array.from({ length: at_once_max }, () => this.#moveOn(evacuation)));
    } catch (error) {
      this.#options.warn(HpcserveError.from(error));
    }
    return evacuation.moved;
  }

  get report(): Promise<MovesReport> {
    return this.#report();
  }

  /** What it takes an answer of a model to go elsewhere with its KV, as it was so far; undefined: it cannot. */
  async costsOf(model: string): Promise<{ bytes_per_s: number; latency_ms: number } | undefined> {
    if (!this.#movable.canMove(model)) return undefined;
    const rates = [...(await this.#rates()).values()];
    const bytes_per_s = rates.length > 0 ? Math.min(...rates) : rate_supposed_bytes_per_s;
    return { bytes_per_s, latency_ms: this.#moved > 0 ? this.#pauses_ms / this.#moved : pause_supposed_ms };
  }

  async close(): Promise<void> {
    this.#closing = true;
    clearInterval(this.#sweeper);
    this.#arrivals.close();
    const ends = await this.#ends?.catch(() => undefined);
    await ends?.source.close();
    await ends?.target.close();
    this.#agent.close();
  }

  /**
   * Asks who serves the models what they could take. A peer that answers late is counted on from then.
   * @returns whether there is anything to plan: answers, and somebody who said what room there is
   */
  async #findRooms(evacuation: Evacuation, awaits_peers: boolean): Promise<boolean> {
    const { models, until_ms, peers, rooms } = evacuation;
    const asked: Promise<void>[] = [];
    for (;;) {
      if ([...models].every((name) => this.#options.models.liveOf(name) === 0)) return false;
      const found = await this.#agent.list(models);
      for (const peer of found.filter(({ session_id }) => !rooms.has(session_id))) {
        peers.push(peer);
        asked.push(this.#askRoom(evacuation, peer));
      }
      await Promise.race([Promise.all(asked), delay(room_ms)]);
      if ([...rooms.values()].some(({ size }) => size > 0)) return true;
      if (!awaits_peers || this.#closing || performance.now() > until_ms) return peers.length > 0;
      await delay(peers_again_ms);
    }
  }

  async #askRoom({ models, rooms, until_ms }: Evacuation, peer: ListedPeer): Promise<void> {
    const told = new Map<string, { places: number; kv_tokens: number }>();
    rooms.set(peer.session_id, told);
    this.#nodes.set(peer.session_id, peer.node);
    for (const model of peer.models) {
      if (!models.has(model)) continue;
      const limit_ms = Math.max(room_ms, Math.round(until_ms - performance.now()));
      try {
        told.set(model, await this.#agent.roomAt(peer, model, limit_ms));
      } catch (error) {
        this.#options.warn(HpcserveError.from(error));
      }
    }
  }

  /** One answer after the other, as the plan is when its turn comes. */
  async #moveOn(evacuation: Evacuation): Promise<void> {
    for (;;) {
      const answers = await this.#answers(evacuation);
      const steps = await this.#plan(evacuation, answers);
      for (const step of steps)
        if (step.by === 'tokens') this.#byTokens(evacuation, answers.get(step.id)!, step);
      const next = steps.find(
        (step): step is EvacuationStep & { by: 'kv' } => step.by === 'kv' && !evacuation.leaving.has(step.id),
      );
      if (!next || this.#closing) return;
      await this.#move(evacuation, answers.get(next.id)!, next.peer);
    }
  }

  async #move(evacuation: Evacuation, answer: AliveAnswer, session_id: string): Promise<void> {
    const { leaving, refusals, peers, rooms, because } = evacuation;
    leaving.add(answer.id);
    const peer = peers.find((listed) => listed.session_id === session_id)!;
    const room = rooms.get(session_id)?.get(answer.model);
    if (room) {
      room.places -= answer.sequences;
      room.kv_tokens -= answer.kv_tokens;
    }
    try {
      const { source } = await this.#open();
      const around = { models: this.#options.models, movable: this.#movable, source };
      const pause_ms = await moveAnswer(around, answer, this.#agent.peer(peer), because);
      if (pause_ms === undefined) return;
      this.#moved++;
      this.#pauses_ms += pause_ms;
      evacuation.moved++;
    } catch (error) {
      const failure = HpcserveError.from(error);
      refusals.set(answer.id, [...(refusals.get(answer.id) ?? []), session_id]);
      leaving.delete(answer.id);
      this.#options.warn(failure);
    } finally {
      this.#told();
    }
  }

  /** Where somebody has a place for what waits here, it goes at once; the others for as long as there is time. */
  #byTokens(
    evacuation: Evacuation,
    { id, alive }: AliveAnswer,
    step: EvacuationStep & { by: 'tokens' },
  ): void {
    if (evacuation.leaving.has(id)) return;
    evacuation.leaving.add(id);
    const { at_once, because } = step;
    if (at_once) {
      this.#options.models.giveAway(alive[0]!.id, evacuation.because);
      return;
    }
    this.#recomputed++;
    this.#last_because = because;
    const what = `an answer of ${alive[0]!.model} is computed again where it goes on, unless it ends here`;
    this.#options.warn(new HpcserveError('E_KV_TRANSFER', { what, because }));
    this.#told();
  }

  async #answers({ models, refusals }: Evacuation): Promise<Map<number, AliveAnswer>> {
    const lists = [...models].map((name) =>
      aliveAnswers(this.#options.models, this.#movable, name, refusals),
    );
    const answers = (await Promise.all(lists)).flat().filter(({ id }) => !this.#handovers.has(id));
    return new Map(answers.map((answer) => [answer.id, answer]));
  }

  async #plan(evacuation: Evacuation, answers: Map<number, AliveAnswer>): Promise<EvacuationStep[]> {
    const { peers, rooms, until_ms, leaving } = evacuation;
    const rates = await this.#rates();
    const known = peers.map(({ session_id: id }): EvacuationPeer => {
      const bytes_per_s = rates.get(id) ?? rate_supposed_bytes_per_s;
      return { id, rooms: rooms.get(id)!, bytes_per_s };
    });
    const left_s = Math.max(0, until_ms - performance.now()) / 1000;
    const waiting = [...answers.values()].filter(({ id }) => !leaving.has(id));
    return planEvacuation(waiting, known, { ...evacuationDefaults, left_s });
  }

  /** As links were, by peer. */
  async #rates(): Promise<Map<string, number>> {
    const ends = await this.#ends;
    const known = ends?.source.peers ?? [];
    return new Map(
      known.flatMap(({ peer, bytes, busy_ms }) =>
        busy_ms > 0 && bytes > 0 ? [[peer, (1000 * bytes) / busy_ms] as const] : [],
      ),
    );
  }

  #open(): Promise<Ends> {
    this.#ends ??= this.#openEnds().catch((error: unknown) => {
      this.#ends = undefined;
      throw error;
    });
    return this.#ends;
  }

  async #openEnds(): Promise<Ends> {
    const { place, warn } = this.#options;
    const memory = this.#movable.openMemory();
    if (!memory)
      throw new HpcserveError('E_KV_FORMAT', {
        what: 'keys and values of this worker cannot move',
        because: 'no model serves here whose KV is in the memory pool',
      });
    const options: TransferOptions = {
      memory,
      own: await SessionIdentity.create(),
      host: place.host,
      private_fabric: place.private_fabric,
      providers: place.fabrics ?? fabrics_default,
      warn: (notice) => {
        warn(notice);
        this.#told();
      },
    };
    if (place.port_range) options.port_range = place.port_range;
    const { staging } = this.#movable;
    if (staging) options.transfer_bytes_max = staging.room_bytes;
    const arrivals = this.#arrivals;
    const rows = this.#rows;
    const target = new KvTarget(options, {
      formatOf: (offer) => (offer.stage ? rows : arrivals).formatOf(offer),
      reserve: (offer, peer) =>
        offer.stage ? rows.reserve(offer, offer.stage) : arrivals.reserve(offer, peer),
      room: (model) => arrivals.room(model),
    });
    const ends = { source: new KvSource(options), target };
    this.#sweeper ??= setInterval(() => void this.#forgetGone(ends), gone_look_ms).unref();
    return ends;
  }

  /** Ways to and from workers that are not there any more are closed: each has a thread, a socket and memory. */
  async #forgetGone({ source, target }: Ends): Promise<void> {
    // An agent that does not answer says nothing of anybody.
    const known = await this.#agent.sessions().catch(() => undefined);
    if (!known) return;
    const held = new Set([...source.peers, ...target.links].map(({ peer }) => peer));
    for (const session_id of this.#gone.look(held, known)) {
      this.#nodes.delete(session_id);
      if (!source.isBusy(session_id)) await source.forget(session_id);
      await target.forget(session_id);
    }
  }

  #told(): void {
    void this.#report().then((report) => this.#options.changed(report));
  }

  async #report(): Promise<MovesReport> {
    const ends = await this.#ends?.catch(() => undefined);
    const { continued, continued_tokens, missed } = this.#arrivals;
    const peers = (ends?.source.peers ?? []).map(({ fallbacks, fallbacks_total, ...peer }) => {
      const last = fallbacks.at(-1);
      const node = this.#nodes.get(peer.peer) ?? '';
      const told: MovesReport['peers'][number] = { ...peer, node, fallbacks: fallbacks_total };
      if (last) told.last_fallback = `${last.way}: ${last.because}`;
      return told;
    });
    const report: MovesReport = {
      moved: this.#moved,
      recomputed: this.#recomputed,
      continued,
      continued_tokens,
      missed,
      peers,
    };
    if (this.#last_because !== undefined) report.last_because = this.#last_because;
    const { report: handovers } = this.#handovers;
    if (handovers) report.handovers = handovers;
    return report;
  }
}
