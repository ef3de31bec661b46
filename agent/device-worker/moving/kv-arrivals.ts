import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvReceiver, KvReservation } from '../../transfer/kv-target.ts';
import type { KvOffer, KvRoom, Range } from '../../transfer/messages.ts';
import { runSize_bytes } from '../../transfer/run-headers.ts';
import type { PlacedRun, SequencesAsk } from '../compute/kv-messages.ts';
import type { StagingRoom } from './host-staging.ts';
import { type MovableModels, roomOnly } from './movable-models.ts';

/**
 * What has arrived waits so long for the request that goes on with it; then it is kept as other prompts are. Lower:
 * less memory is held for clients that have gone; higher: gateways may be slower.
 */
const hold_ms = 15_000;

interface Arrival {
  peer: string;
  model: string;
  tokens: Int32Array;
  /** Tokens whose rows are there. */
  arrived: number;
  timer?: NodeJS.Timeout;
}

/** Takes keys and values that come for models of this worker, until the requests come that go on with them. */
export class KvArrivals implements KvReceiver {
  /** Of requests that found what had come for them, and of those that did not. */
  continued = 0;
  continued_tokens = 0;
  missed = 0;
  readonly #models: MovableModels;
  readonly #isDraining: () => boolean;
  readonly #step_s: (model: string) => number | undefined;
  readonly #onChange: () => void;
  readonly #arrivals = new Map<string, Arrival>();
  #reservations = 0;

  /**
   * @param around `isDraining`: nothing new is taken; `step_s`: of a model's iterations that decode, undefined where
   *   there were none
   */
  constructor(
    models: MovableModels,
    around: { isDraining(): boolean; step_s(model: string): number | undefined; onChange(): void },
  ) {
    this.#models = models;
    this.#isDraining = () => around.isDraining();
    this.#step_s = (model) => around.step_s(model);
    this.#onChange = () => around.onChange();
  }

  formatOf({ of }: KvOffer): KvOffer['format'] {
    return this.#models.formatOf(of?.model ?? '');
  }

  room(model: string): KvRoom {
    if (this.#isDraining()) return { places: 0, kv_tokens: 0 };
    const room = this.#models.roomOf(model);
    // What has come for requests that have not is as good as used.
    for (const { model: of, arrived } of this.#arrivals.values()) {
      if (of !== model) continue;
      room.places = Math.max(0, room.places - 1);
      room.kv_tokens = Math.max(0, room.kv_tokens - arrived);
    }
    const step_s = this.#step_s(model);
    if (step_s !== undefined) room.step_ms = 1000 * step_s;
    return room;
  }

  /** @throws HpcserveError E_KV_MESSAGE, E_KV_STALE, E_KV_ROOM */
  async reserve(offer: KvOffer, peer: string): Promise<KvReservation> {
    const { sequence: name, tokens, layers, runs, of } = offer;
    if (!of || layers.begin !== 0 || layers.end !== this.#models.layersOf(of.model))
      throw wrong(name, 'it does not say whose rows all layers have');
    if (of.token_ids.length < tokens.end) throw wrong(name, 'it has fewer tokens than rows');
    if (this.#isDraining())
      throw new HpcserveError('E_KV_ROOM', { what: 'this worker is drained and takes no sequences' });
    const known = this.#arrivals.get(name);
    const token_ids = Int32Array.from(of.token_ids);
    checkFollows(known, name, peer, tokens, token_ids);
    const room = await this.#models.staging?.toCome(runSize_bytes(offer, tokens));
    const reservation = ++this.#reservations;
    // Nobody waits for what is under way.
    if (known) clearTimeout(known.timer);
    const ended = (): void => {
      room?.give();
      if (known && this.#arrivals.get(name) === known) this.#await(name, known);
    };
    const placed = await this.#reserveRows(of, name, token_ids, runs, reservation).catch((error: unknown) => {
      ended();
      throw error;
    });
    const places = placesOf(offer, placed, room);
    return {
      places: ({ begin }: Range) => places.get(begin) ?? [],
      commit: async () => {
        const from = room && roomOnly(room);
        await this.#models.ask({ do: 'commit', arrival: name, reservation, from }).finally(ended);
        if (known) clearTimeout(known.timer);
        this.#await(name, { peer, model: of.model, tokens: token_ids, arrived: tokens.end });
      },
      abort: () => {
        ended();
        void this.#models.ask({ do: 'abort', arrival: name, reservation }).catch(() => undefined);
      },
    };
  }

  /** What has come is here until somebody goes on with it, for a while. */
  #await(name: string, arrival: Arrival): void {
    arrival.timer = setTimeout(() => this.#forget(name), hold_ms);
    this.#arrivals.set(name, arrival);
  }

  async #reserveRows(
    { model, cache_scope }: NonNullable<KvOffer['of']>,
    arrival: string,
    tokens: Int32Array,
    runs: KvOffer['runs'],
    reservation: number,
  ): Promise<PlacedRun[] | undefined> {
    const asked: SequencesAsk = {
      do: 'reserve',
      model,
      arrival,
      scope: cache_scope,
      tokens,
      runs,
      reservation,
    };
    return (await this.#models.ask(asked)) as PlacedRun[] | undefined;
  }

  /**
   * A request that goes on with what was called so has begun.
   * @param cached_tokens that it did not compute
   * @param tokens that it came with
   */
  began(name: string, cached_tokens: number, tokens: number): void {
    const known = this.#arrivals.get(name);
    // At least one token is left to compute, and gateways may know of fewer tokens than have come.
    if (known && cached_tokens >= Math.min(known.arrived, tokens - 1)) {
      this.continued++;
      this.continued_tokens += cached_tokens;
    } else this.missed++;
    this.#forget(name);
    this.#onChange();
  }

  close(): void {
    for (const { timer } of this.#arrivals.values()) clearTimeout(timer);
    this.#arrivals.clear();
  }

  #forget(name: string): void {
    const known = this.#arrivals.get(name);
    if (!known) return;
    clearTimeout(known.timer);
    this.#arrivals.delete(name);
    void this.#models.ask({ do: 'forget', arrival: name }).catch(() => undefined);
  }
}

/** @throws HpcserveError E_KV_STALE */
function checkFollows(
  known: Arrival | undefined,
  name: string,
  peer: string,
  { begin }: Range,
  token_ids: Int32Array,
): void {
  const stale = (because: string): HpcserveError =>
    new HpcserveError('E_KV_STALE', { what: `rows came for sequence ${name}`, because });
  const arrived = known?.arrived ?? 0;
  if (begin !== arrived) throw stale(`they begin at token ${begin}, and ${arrived} are here`);
  if (!known) return;
  if (known.peer !== peer) throw stale('another peer has begun with it');
  for (let at = 0; at < arrived; at++)
    if (known.tokens[at] !== token_ids[at]) throw stale(`its token ${at} is another one now`);
}

/** Of each run, by its first token: in the pool, or one after another in a room of the host. */
function placesOf(
  offer: KvOffer,
  placed: readonly PlacedRun[] | undefined,
  room: StagingRoom | undefined,
): Map<number, MemoryPiece[]> {
  if (placed) return new Map(placed.map(({ tokens, pieces }) => [tokens.begin, pieces]));
  if (!room) throw new Error('rows have no place, neither in the pool nor in memory of the host');
  let { offset } = room;
  return new Map(
    offer.runs.map((run) => {
      const piece = { offset, bytes: runSize_bytes(offer, run) };
      offset += piece.bytes;
      return [run.begin, [piece]];
    }),
  );
}

function wrong(name: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_MESSAGE', { what: `the rows of sequence ${name} cannot be taken`, because });
}
