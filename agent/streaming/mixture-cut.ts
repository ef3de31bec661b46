import type { Pointer } from '../../native/signature.ts';
import { ringFor_bytes } from '../../solver/streaming/arena-size.ts';
import { type PlannedWindow, planExpertWindows } from '../../solver/streaming/expert-windows.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import { kernelPolicy } from '../engine/engine-options.ts';
import type { ModelFile } from '../engine/model-file.ts';
import type { Operator } from '../engine/operators.ts';
import {
  type ExpertMatrices,
  type PlannedWeight,
  planWeights,
  type WeightPlan,
} from '../engine/weight-plan.ts';
import type { LoadedWeights } from '../engine/weights.ts';
import { type ExpertLayer, ExpertStream } from './expert-stream.ts';
import {
  type ExpertPlanes,
  ExpertWindow,
  expertPlanes,
  window_bytes,
  windowMargin_bytes,
} from './expert-window.ts';
import { PartWeights } from './part-weights.ts';
import type { StreamMeter } from './stream-meter.ts';
import { placeStaying, placeStreamed, type StreamedCut, TakenRoom } from './streamed-cut.ts';
import type { StreamingArena } from './streaming-arena.ts';

/** Of what may stay, as much of it as the arena has in one piece for slots. */
const slot_shares = [1, 0.5, 0.25, 0] as const;

interface Asked {
  options: EngineOptions;
  arena: StreamingArena;
  file: ModelFile;
  /** For parts and experts that stay. */
  resident_bytes: number;
  meter: StreamMeter;
}

/** Layers whose experts fit the same slots. */
interface AlikeLayers {
  kind: ExpertPlanes;
  layers: number[];
}

/**
 * A mixture, cut behind each of its routers: see `MixturePass`. What every step needs has its own part of the ring, or
 * stays; the rest of both has slots for experts.
 * @param room what was taken of it is given back where undefined is returned
 * @returns undefined: it is no mixture, its experts cannot lie in slots, or there is no room for all of a layer's
 * @throws HpcserveError E_NATIVE_KERNEL, E_ENGINE_MODEL
 */
export function cutAtRouters(asked: Asked, room: TakenRoom): StreamedCut | undefined {
  const { options, arena, file } = asked;
  const { gguf, model } = file;
  if (!model.experts) return undefined;
  const plans = operatorsOf(model.n_layer).map((operators) => ({
    operators,
    plan: planWeights(gguf, model, operators, kernelPolicy(options)),
  }));
  const matrices = plans.slice(1).map(({ plan }, layer) => plan.layers.get(layer)!.experts!);
  const alike = alikeLayers(asked, matrices);
  if (!alike) return undefined;
  const dense: PartWeights[] = [];
  const windows: ExpertWindow[] = [];
  const undo = (): void => {
    for (const own of [...dense, ...windows]) own.free();
    room.give();
  };
  try {
    for (const { plan } of plans) dense.push(new PartWeights(arena, gguf, withoutExperts(plan)));
    const placed = placeAll(asked, dense, alike, room, windows);
    if (!placed) {
      undo();
      return undefined;
    }
    const { parts, lacking_bytes } = placed;
    const layers = placed.layers.map((window, layer) => ({ window, matrices: matrices[layer]! }));
    const { meter } = asked;
    const experts = new ExpertStream({
      arena,
      version: dense[0]!.version,
      layers,
      experts: model.experts,
      meter,
    });
    const stages = plans.map(({ operators, plan }, part) => ({
      operators,
      layer: Math.min(part, model.n_layer - 1),
      weights: new MixtureWeights(plan, dense[part]!, layers[part - 1]),
    }));
    return { parts, lacking_bytes, stages, experts };
  } catch (error) {
    undo();
    throw error;
  }
}

/** Experts of one layer, attention and router of the next; the first without experts, the last with the head. */
function operatorsOf(n_layer: number): Operator[][] {
  return Array.from({ length: n_layer + 1 }, (_, part) => {
    const operators: Operator[] = [];
    if (part > 0) operators.push({ kind: 'experts', layer: part - 1 });
    if (part === n_layer) return [...operators, { kind: 'output' }];
    operators.push({ kind: 'attention', layer: part }, { kind: 'router', layer: part });
    if (part + 1 < n_layer) operators.push({ kind: 'lookahead', layer: part + 1 });
    return operators;
  });
}

function withoutExperts(plan: WeightPlan): WeightPlan {
  const layers = [...plan.layers].map(([index, { experts: _, ...layer }]) => [index, layer] as const);
  return { ...plan, layers: new Map(layers) };
}

function alikeLayers(
  { options, arena }: Asked,
  matrices: readonly ExpertMatrices[],
): AlikeLayers[] | undefined {
  const found = new Map<string, AlikeLayers>();
  for (const [layer, own] of matrices.entries()) {
    const kind = expertPlanes(arena, own, kernelPolicy(options));
    if (!kind) return undefined;
    const alike = found.get(kind.key) ?? { kind, layers: [] };
    found.set(kind.key, alike);
    alike.layers.push(layer);
  }
  return [...found.values()];
}

interface Placed extends Pick<StreamedCut, 'parts' | 'lacking_bytes'> {
  /** By layer. */
  layers: readonly ExpertWindow[];
}

/** @param windows are added to it as they are made */
function placeAll(
  asked: Asked,
  dense: readonly PartWeights[],
  alike: readonly AlikeLayers[],
  room: TakenRoom,
  windows: ExpertWindow[],
): Placed | undefined {
  const { arena, resident_bytes } = asked;
  // Every step needs these, and an expert only now and then.
  const { staying, lacking_bytes } = placeStaying(dense, resident_bytes, room);
  const sizes = dense.filter((own) => !staying.has(own)).map(({ bytes }) => bytes);
  const left_bytes = resident_bytes - [...staying].reduce((sum, { bytes }) => sum + bytes, 0);
  const align = (bytes: number): number => Math.ceil(bytes / arena.alignment_bytes) * arena.alignment_bytes;
  // Where slots have no room beside two parts on their way, they have it beside one.
  for (const ring_bytes of [ringFor_bytes(sizes), align(Math.max(0, ...sizes))]) {
    const placed = placeWindows(asked, alike, ring_bytes, left_bytes - lacking_bytes, room, windows);
    if (!placed) continue;
    const parts = placeStreamed(dense, staying, arena, ring_bytes)!;
    return { parts, layers: placed.layers, lacking_bytes: lacking_bytes + placed.lacking_bytes };
  }
  return undefined;
}

/** @param taken_bytes of the ring, from its beginning */
function placeWindows(
  { arena, file }: Asked,
  alike: readonly AlikeLayers[],
  taken_bytes: number,
  resident_bytes: number,
  room: TakenRoom,
  windows: ExpertWindow[],
): { layers: ExpertWindow[]; lacking_bytes: number } | undefined {
  const { n_layer, experts } = file.model;
  // One window for each layer at most, and each of them may end within a page.
  const margin_bytes =
    (n_layer + alike.length) *
    (arena.alignment_bytes + Math.max(...alike.map(({ kind }) => windowMargin_bytes(arena, kind))));
  const kinds = alike.map(({ kind, layers }) => ({ layers, slot_bytes: kind.slot_bytes }));
  for (const share of slot_shares) {
    const wanted_bytes = Math.max(0, share * resident_bytes);
    const planned = planExpertWindows(
      kinds,
      experts!.count,
      arena.ring.bytes - taken_bytes - margin_bytes,
      wanted_bytes,
    );
    const own = new TakenRoom(arena);
    const offsets = planned && windowOffsets(arena, alike, planned, taken_bytes, own);
    if (!planned || !offsets) {
      own.give();
      continue;
    }
    room.join(own);
    const layers: ExpertWindow[] = [];
    planned.forEach(({ kind, slots, stays, layers: held }, index) => {
      const window = new ExpertWindow(arena, alike[kind]!.kind, slots, stays, offsets[index]!);
      windows.push(window);
      for (const layer of held) layers[layer] = window;
    });
    return { layers, lacking_bytes: Math.max(0, resident_bytes - wanted_bytes) };
  }
  return undefined;
}

/** @returns undefined where one of them finds no room */
function windowOffsets(
  arena: StreamingArena,
  alike: readonly AlikeLayers[],
  planned: readonly PlannedWindow[],
  taken_bytes: number,
  room: TakenRoom,
): number[] | undefined {
  const offsets: number[] = [];
  let in_ring = taken_bytes;
  for (const { kind, slots, stays } of planned) {
    const bytes = window_bytes(arena, alike[kind]!.kind, slots);
    const offset = stays ? room.take(bytes) : arena.ring.offset + in_ring;
    if (!stays) in_ring += Math.ceil(bytes / arena.alignment_bytes) * arena.alignment_bytes;
    if (offset === undefined || in_ring > arena.ring.bytes) return undefined;
    offsets.push(offset);
  }
  return offsets;
}

/** Of a part: what is brought for it as a whole, and a layer's experts in slots. */
class MixtureWeights implements LoadedWeights {
  readonly plan: WeightPlan;
  readonly bytes: number;
  readonly #dense: PartWeights;
  readonly #experts: ReadonlyMap<PlannedWeight, Pointer>;

  constructor(plan: WeightPlan, dense: PartWeights, experts: ExpertLayer | undefined) {
    this.plan = plan;
    this.#dense = dense;
    this.#experts = experts?.window.tensorsOf(experts.matrices) ?? new Map();
    const count = experts?.matrices.gate.shape[2] ?? 0;
    this.bytes = dense.bytes + count * (experts?.window.slot_bytes ?? 0);
  }

  tensor(weight: PlannedWeight): Pointer {
    return this.#experts.get(weight) ?? this.#dense.tensor(weight);
  }

  rows(weight: PlannedWeight, begin: number, end: number): Pointer | undefined {
    return this.#dense.rows(weight, begin, end);
  }

  free(): void {
    this.#dense.free();
  }
}
