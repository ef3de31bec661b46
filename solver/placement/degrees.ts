/** Tensor-parallel degrees a replica may have on a kind of node. */
import { stageBounds } from '../../spec/model-yaml.ts';
import type { NodeKindOffer, PlacementModel, ResolvedEngine } from '../../spec/plan.ts';
import { ffnLayers } from '../catalog/model-shape.ts';
import { shapeOf, weightBlock } from './model-facts.ts';

/** Engines that split a replica over devices at our word. */
export const splitting: ReadonlySet<ResolvedEngine> = new Set([
  'vllm',
  'sglang',
  'lmdeploy',
  'tensorrt-llm',
  'tgi',
  'command',
]);

/** Engines that run one replica on several nodes. */
const spanning: ReadonlySet<ResolvedEngine> = new Set(['native', 'vllm', 'sglang', 'command']);

/**
 * Nodes that a replica of tensor × pipeline devices is split over: layers are split within a node, where links are
 * fast, and stages are divided evenly over as few nodes as hold them. Undefined where a layer takes more than a node
 * has.
 */
export function nodesOf(tensor: number, pipeline: number, devices_per_node: number): number | undefined {
  for (let nodes = 1; nodes <= pipeline; nodes++)
    if (pipeline % nodes === 0 && (tensor * pipeline) / nodes <= devices_per_node) return nodes;
  return undefined;
}

/** Why no replica of this engine may be split over such nodes; undefined where it may. */
export function staysOnNode(engine: ResolvedEngine, offer: NodeKindOffer): string | undefined {
  if (!spanning.has(engine)) return `${engine} runs a replica on one node`;
  // Stages of the native engine talk over TLS with pinned keys.
  if (engine === 'native' || engine === 'command' || offer.private_fabric) return undefined;
  return `the parts of ${engine} on several nodes talk to each other without any proof of who they are, and network.private_fabric is not set`;
}

/**
 * Degrees to choose from, ascending; never empty. A degree divides the heads (a key-value head may be held by
 * several devices, but then by equally many) and the feed-forward widths, and the group of a layer stays within a node.
 * MIG slices form no groups: NCCL does not connect slices of one GPU.
 */
export function tensorDegrees(
  model: PlacementModel,
  offer: NodeKindOffer,
  engine: ResolvedEngine,
): readonly number[] {
  const { tensor } = model.spec.parallel;
  const pipeline = stageBounds(model.spec).stages_max;
  if (tensor !== 'auto') return [tensor];
  if (engine === 'command' || !splitting.has(engine) || offer.devices.kind !== 'gpu') return [1];
  const { count } = offer.devices;
  const across = staysOnNode(engine, offer) === undefined;
  const degrees = Array.from({ length: count }, (_, index) => index + 1).filter((degree) => {
    const nodes = nodesOf(degree, pipeline, count);
    if (nodes === undefined || (nodes > 1 && !across)) return false;
    if (model.summary === undefined) return Number.isInteger(Math.log2(degree));
    return dividesHeads(model, degree) && undividedWidth(model, degree) === undefined;
  });
  return degrees.length > 0 ? degrees : [1];
}

/** True where nothing is known of the model's heads. */
export function dividesHeads({ summary }: PlacementModel, degree: number): boolean {
  if (summary === undefined) return true;
  const { n_head, n_head_kv } = summary;
  return n_head % degree === 0 && (n_head_kv % degree === 0 || degree % n_head_kv === 0);
}

/** Words of engine_args that leave each expert whole on one device. */
const expertParallel: ReadonlySet<string> = new Set([
  '--enable-expert-parallel',
  '-ep',
  '--ep',
  '--ep-size',
  '--expert-parallel-size',
]);

/** A width whose parts are no whole numbers, or no whole blocks of scaled weights. */
export interface UndividedWidth {
  /** Of the model, in elements. */
  width: number;
  of: 'the feed-forward layers' | 'an expert';
  /** Absent: weights have no scales by block. */
  block?: number;
}

/** The first width of the feed-forward parts that engines refuse to split so; undefined where none is known of. */
export function undividedWidth(model: PlacementModel, degree: number): UndividedWidth | undefined {
  const shape = shapeOf(model);
  if (shape === undefined || degree === 1) return undefined;
  const block = weightBlock(model);
  const words = model.spec.engine_args.map((word) => word.split('=')[0]!.replaceAll('_', '-'));
  const isWhole = words.some((word) => expertParallel.has(word));
  const widths: UndividedWidth[] = [];
  if (ffnLayers(shape).dense > 0) widths.push({ width: shape.n_ff, of: 'the feed-forward layers' });
  if (shape.experts && !isWhole) widths.push({ width: shape.experts.n_ff, of: 'an expert' });
  for (const each of widths) {
    if (each.width % degree !== 0) return each;
    const wrong = block.find((side) => (each.width / degree) % side !== 0);
    if (wrong !== undefined) return { ...each, block: wrong };
  }
  return undefined;
}
