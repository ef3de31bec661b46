/**
 * How GPUs of a site could be divided into MIG slices for some models: the placement of `gpu-hours` with every way to
 * divide them as a kind of its own, of the same nodes. Nothing is divided by it: administrators do that. Pure.
 */
import type { NodeKindOffer, PlacementQuestion, PlannedLaunch } from '../../spec/plan.ts';
import { type UniformSlices, uniformSlices } from '../catalog/mig-profiles.ts';
import type { AllocationLimits } from './allocation.ts';
import { place } from './placement.ts';

/** GPUs of one kind of nodes that would be divided alike. */
export interface SlicedGpus {
  node_kind: string;
  /** `1g.10gb`. */
  profile: string;
  slices_per_gpu: number;
  gpus: number;
  /** Of these so many would have something to do. */
  slices: number;
  replicas: { model: string; count: number }[];
}

export interface MigProposal {
  sliced: SlicedGpus[];
  /** GPUs that would not be divided, by kind of nodes. */
  whole: { node_kind: string; gpus: number }[];
  /** GPUs that the models take while none is divided; absent: they do not fit so. */
  gpus_undivided?: number;
}

/** Why there is none. */
export type NoProposal =
  | 'no GPU is known to be divisible'
  | 'slices would save no GPU'
  | 'not all models fit, however GPUs are divided';

interface Slicing {
  of: string;
  slices: UniformSlices;
}

/**
 * The nodes are taken as they are built, whatever is free on them now. Models that ask for kinds of nodes by name stay
 * on those, undivided.
 * @param limits of a search, of which there are two
 */
export function proposeSlices(
  question: PlacementQuestion,
  limits: () => AllocationLimits = () => ({}),
): MigProposal | NoProposal {
  const built = question.node_kinds.map(asBuilt);
  const slicings = new Map(built.flatMap(slicingsOf));
  if (slicings.size === 0) return 'no GPU is known to be divisible';
  const asked: PlacementQuestion = { ...question, objective: 'gpu-hours', node_kinds: built };
  delete asked.running;
  const undivided = place(asked, limits());
  const kinds = built.flatMap((offer) => waysOf(offer, slicings));
  const divided = place({ ...asked, node_kinds: kinds }, limits());
  const none =
    undivided.unplaced.length > 0
      ? 'not all models fit, however GPUs are divided'
      : 'slices would save no GPU';
  if (divided.unplaced.length > 0) return none;
  const proposal: MigProposal = {
    sliced: slicedOf(divided.launches, slicings),
    whole: wholeOf(divided.launches, slicings),
  };
  if (proposal.sliced.length === 0) return 'slices would save no GPU';
  if (undivided.unplaced.length > 0) return proposal;
  const gpus_undivided = sum(wholeOf(undivided.launches, slicings));
  const saves = sum(proposal.sliced) + sum(proposal.whole) < gpus_undivided;
  return saves ? { ...proposal, gpus_undivided } : 'slices would save no GPU';
}

function asBuilt(offer: NodeKindOffer): NodeKindOffer {
  const built = { ...offer };
  delete built.free;
  delete built.nodes_idle;
  delete built.queue_wait_s;
  return built;
}

/** By the name of the kind that its nodes would be. */
function slicingsOf({ node_kind, devices }: NodeKindOffer): [name: string, slicing: Slicing][] {
  if (devices.kind !== 'gpu' || devices.emulated) return [];
  return uniformSlices(devices.model).map((slices) => [
    `${node_kind} as ${slices.profile}`,
    { of: node_kind, slices },
  ]);
}

/** The kind as it is and as it could be, all of one pool: each node is given once. */
function waysOf(offer: NodeKindOffer, slicings: ReadonlyMap<string, Slicing>): NodeKindOffer[] {
  const { devices, node_kind, nodes_total, pool = { id: node_kind, nodes: nodes_total } } = offer;
  const divided = [...slicings].filter(([, { of }]) => of === node_kind);
  if (divided.length === 0) return [offer];
  return [
    { ...offer, pool },
    ...divided.map(
      ([
        name,
        {
          slices: { model, slices_per_gpu, memory_bytes },
        },
      ]): NodeKindOffer => {
        const count = devices.count * slices_per_gpu;
        return { ...offer, pool, node_kind: name, devices: { kind: 'mig', model, count, memory_bytes } };
      },
    ),
  ];
}

function slicedOf(launches: readonly PlannedLaunch[], slicings: ReadonlyMap<string, Slicing>): SlicedGpus[] {
  return [...slicings].flatMap(
    ([
      variant,
      {
        of,
        slices: { profile, slices_per_gpu },
      },
    ]): SlicedGpus[] => {
      const own = launches.filter(({ node_kind }) => node_kind === variant);
      const slices = own.reduce((total, launch) => total + devicesOf(launch), 0);
      if (slices === 0) return [];
      const counts = new Map<string, number>();
      for (const { model } of own.flatMap(({ units }) => units))
        counts.set(model.name, (counts.get(model.name) ?? 0) + 1);
      const replicas = [...counts].map(([model, count]) => ({ model, count }));
      const gpus = Math.ceil(slices / slices_per_gpu);
      return [{ node_kind: of, profile, slices_per_gpu, gpus, slices, replicas }];
    },
  );
}

function wholeOf(
  launches: readonly PlannedLaunch[],
  slicings: ReadonlyMap<string, Slicing>,
): MigProposal['whole'] {
  const gpus = new Map<string, number>();
  for (const launch of launches)
    if (launch.devices_per_node.kind === 'gpu' && !slicings.has(launch.node_kind))
      gpus.set(launch.node_kind, (gpus.get(launch.node_kind) ?? 0) + devicesOf(launch));
  return [...gpus].map(([node_kind, count]) => ({ node_kind, gpus: count }));
}

function devicesOf({ node_count, devices_per_node }: PlannedLaunch): number {
  return node_count * devices_per_node.count;
}

function sum(parts: readonly { gpus: number }[]): number {
  return parts.reduce((total, { gpus }) => total + gpus, 0);
}
