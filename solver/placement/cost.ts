/**
 * What it costs to run replicas somewhere, as whole numbers to add up. The weights say what comes before
 * what; each is larger than all below it together for one replica.
 */
import type { PlacementQuestion } from '../../spec/plan.ts';
import { onRealGpu } from './engine-choice.ts';
import type { PlacementOption } from './options.ts';

/** A KV cache shorter than asked for. */
const shortened_kv = 100_000;
/** A node that is busy now: the replica waits in the queue. */
const waiting = 20_000;
/** Moving a replica that runs: it must load again, and its sequences move. Higher: plans change less. */
const moving = 8_000;
/** A node that may be taken away. */
const preemptible = 4_000;
/** A CPU where there are GPUs; twice as much where a CPU stands in for a GPU. */
const slower_kind = 1_000;
/** One step up in device memory: large devices stay free for models that need them. */
const larger_device = 10;

/**
 * What `replicas` replicas of one option cost together: a whole number, not negative. An objective such as
 * latency or energy is another function of this shape.
 */
export type ReplicaCost = (option: PlacementOption, replicas: number, question: PlacementQuestion) => number;

/** The order of preference where nothing is known of speeds. */
export function replicaCost(option: PlacementOption, replicas: number, question: PlacementQuestion): number {
  const { offer, model, memory } = option;
  const { devices } = offer;
  const sizes = [...new Set(question.node_kinds.map((kind) => kind.devices.memory_bytes))].sort(
    (a, b) => a - b,
  );
  const each =
    (memory.kv_tokens < memory.kv_tokens_wanted ? shortened_kv : 0) +
    (offer.tier === 'stable' ? 0 : preemptible) +
    (onRealGpu(offer) ? 0 : devices.kind === 'cpu' ? slower_kind : 2 * slower_kind) +
    larger_device * Math.min(90, sizes.indexOf(devices.memory_bytes)) +
    Math.min(9, question.node_kinds.indexOf(offer));
  const runs = (question.running ?? [])
    .filter((each) => each.model === model.spec.name && each.node_kind === offer.node_kind)
    .reduce((sum, each) => sum + each.replicas, 0);
  const started = question.running === undefined ? 0 : Math.max(0, replicas - runs);
  const idle = offer.nodes_idle === undefined ? replicas : runs + replicasOnIdle(option);
  return each * replicas + moving * started + waiting * Math.max(0, replicas - idle);
}

function replicasOnIdle({ offer, device_count }: PlacementOption): number {
  return (offer.nodes_idle ?? 0) * Math.floor(offer.devices.count / device_count);
}
