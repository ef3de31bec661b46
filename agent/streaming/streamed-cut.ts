import { residentTensors } from '../../solver/streaming/resident-share.ts';
import { planRing } from '../../solver/streaming/ring-plan.ts';
import type { Operator } from '../engine/operators.ts';
import type { LoadedWeights } from '../engine/weights.ts';
import type { ExpertStream } from './expert-stream.ts';
import type { StreamPart } from './part-stream.ts';
import type { PartWeights } from './part-weights.ts';
import type { StreamingArena } from './streaming-arena.ts';

/** A part of a model that is computed at once. */
export interface CutStage {
  operators: readonly Operator[];
  /** Of the layers whose keys and values it has, the first; any where it has none. */
  layer: number;
  /** What it is computed with; its own once it is made. */
  weights: LoadedWeights;
}

/** A model in parts, with a place for each of them. */
export interface StreamedCut {
  stages: readonly CutStage[];
  /** What is brought of each stage, in the same order. */
  parts: readonly StreamPart[];
  experts?: ExpertStream;
  /** Of what was to stay, what found no room. */
  lacking_bytes: number;
}

/** What a cut has taken of an arena, to be given back. */
export class TakenRoom {
  readonly #arena: StreamingArena;
  readonly #taken: number[] = [];

  constructor(arena: StreamingArena) {
    this.#arena = arena;
  }

  /** @returns an offset of the pool; undefined where there is no room */
  take(bytes: number): number | undefined {
    const offset = this.#arena.takeResident(bytes);
    if (offset !== undefined) this.#taken.push(offset);
    return offset;
  }

  /** What another one took is this one's from now on. */
  join(other: TakenRoom): void {
    this.#taken.push(...other.#taken.splice(0));
  }

  give(): void {
    for (const offset of this.#taken.splice(0)) this.#arena.giveResident(offset);
  }
}

/** Which parts stay, each in a place of its own. */
export function placeStaying(
  all: readonly PartWeights[],
  resident_bytes: number,
  room: TakenRoom,
): { staying: ReadonlySet<PartWeights>; lacking_bytes: number } {
  const tensors = all.map(({ bytes }, order) => ({ bytes, uses_per_s: 1, order }));
  const staying = new Set<PartWeights>();
  let lacking_bytes = 0;
  for (const index of residentTensors(tensors, resident_bytes)) {
    const weights = all[index]!;
    const offset = room.take(weights.bytes);
    if (offset === undefined) {
      // Other models have what is missing: this part is streamed.
      lacking_bytes += weights.bytes;
      continue;
    }
    staying.add(weights);
    weights.placeAt(offset);
  }
  return { staying, lacking_bytes };
}

/**
 * The others, in the first so many bytes of the ring.
 * @returns undefined where one is larger than that
 */
export function placeStreamed(
  all: readonly PartWeights[],
  staying: ReadonlySet<PartWeights>,
  arena: StreamingArena,
  ring_bytes: number,
): StreamPart[] | undefined {
  const streamed = all.filter((weights) => !staying.has(weights));
  const sizes = streamed.map(({ bytes }) => bytes);
  const ring = planRing(sizes, ring_bytes, arena.alignment_bytes);
  if (!ring) return undefined;
  for (const [index, { offset }] of ring.entries()) streamed[index]!.placeAt(arena.ring.offset + offset);
  const places = ring.values();
  return all.map(
    (weights): StreamPart => (staying.has(weights) ? { weights } : { weights, ring: places.next().value! }),
  );
}
