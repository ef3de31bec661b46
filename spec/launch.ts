/**
 * What one job is to run: written by control before it submits, read by the node agents of that job.
 * Paths and names only; never a secret.
 */
import { z } from 'zod';
import { unitParsersSchema } from './answer-parsers.ts';
import { meshSettingsSchema, providerId } from './mesh-settings.ts';
import { poolNames } from './model-pools.ts';
import { engineNames, modelSchema } from './model-yaml.ts';
import { sharingSchema } from './sharing-settings.ts';

const deviceKindSchema = z.enum(['cpu', 'gpu', 'mig']);

export const unitSchema = z.strictObject({
  /** Unique in the deployment: `<model>-<replica>` made safe for file names. */
  unit: z.string(),
  /** Which node of the job runs it, from 0. */
  node_index: z.int().min(0),
  /**
   * Nodes it is split over, from that one on, each with `device_count` devices; absent: one. They are the job's, or of
   * one job each: see `part` of the launch.
   */
  nodes: z.int().min(2).optional(),
  engine: z.enum(engineNames).exclude(['auto']),
  /** Absolute path of the GGUF file or model folder, as compute nodes see it. */
  model_path: z.string(),
  /** The model as asked for, with defaults filled in. */
  model: modelSchema,
  /** It computes prompts, or goes on with answers whose KV it is sent; absent: both. */
  pool: z.enum(poolNames).optional(),
  device_kind: deviceKindSchema,
  /** Of each of its nodes, where devices of some are of another kind; absent: all are of `device_kind`. */
  node_device_kinds: z.array(deviceKindSchema).min(2).optional(),
  /** Devices it takes on its node; native units of one device share a device worker. */
  device_count: z.int().min(0),
  /**
   * How the replica is split over them: the product is `device_count` × `nodes` where it takes devices of its own, and
   * less where it may have more stages than it is to have while little is asked of it.
   */
  tensor: z.int().min(1).default(1),
  pipeline: z.int().min(1).default(1),
  /**
   * Of the native engine: operators [begin, end) of each stage that it begins with, the first one's first; one on each
   * device from the first of its first node on (`stagesPerNode`); other devices are for stages that it may get. More
   * than `pipeline` where it loads as finer ones, which are merged later. Absent: it is not cut.
   */
  stages: z
    .array(z.strictObject({ begin: z.int().min(0), end: z.int().min(1) }))
    .min(2)
    .optional(),
  /**
   * On one node with more devices than stages: on which of its devices each stage begins, counted from `first_device`.
   * Absent: on the first ones.
   */
  stage_devices: z.array(z.int().min(0)).min(2).optional(),
  /** Index of its first device on the node, counted among the job's devices of that kind. */
  first_device: z.int().min(0),
  /** Compute threads on a CPU device (or on one that a CPU stands in for). */
  threads: z.int().min(1),
  /** Longest sequence, resolved. */
  context_tokens: z.int().min(16),
  /** The engine is told `context_tokens`; absent: it takes what the model was trained for, which is that. */
  context_told: z.literal(true).optional(),
  kv_tokens: z.int().min(16),
  weight_bytes: z.int().min(0),
  /** Of engines that are told how to read answers. */
  parsers: unitParsersSchema.optional(),
  /** Sequences at once: asked for, or what the plan takes its engine to choose. Absent: of earlier versions. */
  max_sequences: z.int().min(1).optional(),
  /** Of the native engine, likewise: prompt tokens of one iteration. */
  prefill_chunk_tokens: z.int().min(1).optional(),
  /** What the plan gave it on each of its devices; absent in launches of earlier versions. */
  memory: z
    .strictObject({
      /** All of it: weights, KV, and what the engine computes in. */
      device_bytes: z.int().min(0),
      /** Of these, KV. */
      kv_bytes: z.int().min(0),
      /** Of these, what its weights are streamed through, together with other models there; absent: they are not. */
      arena_bytes: z.int().min(1).optional(),
      /** Of these, for layers of it that stay while the others are streamed; absent: none do. */
      resident_bytes: z.int().min(1).optional(),
      /**
       * Of the rate of its link, what it counts on where a product can read more to be done sooner; the rest is of
       * other devices that read over it. Absent: nobody else does, or its weights are not streamed.
       */
      link_share: z.number().gt(0).lt(1).optional(),
      /**
       * What the plan takes its device's link to give who reads over it alone. Absent: the device has no link of its
       * own, its speed says nothing, or its weights are not streamed.
       */
      link_bytes_per_s: z.number().positive().optional(),
      /**
       * Of the memory of its node, beside `device_bytes`: page-locked copies of its weights, which products of the
       * device read where they are. Absent: no product does.
       */
      locked_bytes: z.int().min(0).optional(),
      /**
       * Of a model whose weights give way to others: what the device has for all such models of it. Absent: it keeps
       * its memory.
       */
      reuse_bytes: z.int().min(1).optional(),
      /** `device_bytes` as a share of the device's declared memory, 0 to 1. */
      share: z.number().min(0),
    })
    .optional(),
});
export type UnitSpec = z.infer<typeof unitSchema>;

/**
 * Stages that a unit begins with on each of its nodes, as long as there are any: as many as it has devices there; where
 * each node is a job of its own, as evenly as they can be divided.
 */
export function stagesPerNode({ model, stages = [], nodes = 1, device_count }: UnitSpec): number {
  return model.parallel.jobs === undefined ? device_count : Math.ceil(stages.length / nodes);
}

/** Of the devices that a unit has on one of its nodes, as that counts itself. */
export function deviceKindOn(unit: UnitSpec, node_index: number): UnitSpec['device_kind'] {
  return unit.node_device_kinds?.[node_index - unit.node_index] ?? unit.device_kind;
}

/** Sequences that a unit computes at once, as far as the plan knows. */
export function concurrencyOf({ max_sequences, model }: UnitSpec): number {
  return max_sequences ?? model.max_sequences ?? 16;
}

/** What the native engine takes where nobody says otherwise. */
export const nativeChunk_tokens = 256;

/** Prompt tokens that a unit of the native engine computes in one iteration, as far as the plan knows. */
export function chunkOf_tokens({ prefill_chunk_tokens, model }: UnitSpec): number {
  return prefill_chunk_tokens ?? model.prefill_chunk_tokens ?? nativeChunk_tokens;
}

/** The units that run on a node of the job, all or a part of each. */
export function unitsOnNode(units: readonly UnitSpec[], node_index: number): UnitSpec[] {
  return units.filter((unit) => {
    const rank = node_index - unit.node_index;
    return rank >= 0 && rank < (unit.nodes ?? 1);
  });
}

/** A job that computes some stages of a pipeline; others of its deployment compute the rest. */
const pipelinePartSchema = z.strictObject({
  /** Equal for the jobs that belong together. */
  group: z.string().min(1).max(256),
  /** Its first node among those that its units count, from 0. */
  node_index: z.int().min(0),
  /**
   * Of its deployment, for all jobs of the group: where their stages lie since they have changed. Absent in launches of
   * earlier versions: stages stay where they are.
   */
  folder: z.string().optional(),
});

export const launchSchema = z.strictObject({
  format: z.literal(1),
  launch_id: z.string().regex(/^[0-9a-f]{16}$/),
  deployment: z.string(),
  site: z.string(),
  /** `user@site`, a label; what proves it lies beside this file. */
  provider: z.string(),
  /** Fingerprints of the providers whose gateways and nodes may use its sessions; absent: every member of the mesh. */
  users: z.array(providerId).optional(),
  /** Fingerprints of those whose gateways may operate them, beside the provider's own. */
  operators: z.array(providerId).optional(),
  region: z.string().optional(),
  tier: z.enum(['stable', 'scavenger']),
  node_kind: z.string(),
  node_count: z.int().min(1),
  /** Device model the site declares for this node kind, and whether a CPU stands in for it. */
  device_model: z.string().optional(),
  emulated: z.literal('cpu').optional(),
  /** Least time of an iteration on such a stand-in, ms. */
  emulated_step_ms: z.number().positive().optional(),
  /** Declared memory of one device, bytes; used where the device itself cannot be asked (emulated, CPU share). */
  device_memory_bytes: z.int().optional(),
  /**
   * CPU devices by which its units count on each node: the cores that the job has there are divided among so many.
   * Absent: one a socket.
   */
  cpu_devices_per_node: z.int().min(1).optional(),
  /**
   * Cores of the node that are this launch's alone, where no scheduler keeps it to cores of its own (the local site).
   * Absent: those that its agent may run on.
   */
  cores: z.array(z.int().min(0)).min(1).optional(),
  /**
   * What the plan gave the job of the memory of each node, but for the page cache of files that weights are streamed
   * from, bytes; absent where the memory is that of GPUs.
   */
  memory_bytes_per_node: z.int().positive().optional(),
  units: z.array(
    unitSchema.refine(({ model }) => model.weights !== 'auto', {
      error: 'the plan of a job says where weights lie: auto is none of these places',
      path: ['model', 'weights'],
    }),
  ),
  /** Absent: all nodes that its units count are its own. */
  part: pipelinePartSchema.optional(),
  /** The rendezvous folder of the mesh. */
  mesh_folder: z.string(),
  /** This launch's own folder: state files, logs. */
  launch_folder: z.string(),
  /** Of its deployment: what workers had in memory when they left. Absent: nothing is kept. */
  manifest_folder: z.string().optional(),
  /** Folder for sockets and scratch on the node; made 0700. Absent: $TMPDIR or /tmp. */
  runtime_folder: z.string().optional(),
  native_library_dir: z.string().optional(),
  /** Preferred network of the node: an interface name or a CIDR. */
  network: z.string().optional(),
  port_range: z.tuple([z.int(), z.int()]).optional(),
  /** Nobody else can listen on the network: KV may travel in the clear. */
  private_fabric: z.literal(true).optional(),
  /** Providers of libfabric for KV, best first; absent: those that are made for it. */
  fabrics: z.array(z.string()).optional(),
  /** Interfaces for NCCL and Gloo, where the site says so. */
  engine_interfaces: z.array(z.string()).optional(),
  /** How wrapped engines are started: see `runtime` of the site config. */
  engine_prefix: z.array(z.string()).default([]),
  /**
   * From the signal that ends it, running answers have so long, s; absent: what is right where Slurm kills after 30 s.
   */
  drain_s: z.number().min(0).optional(),
  /** How its devices are shared, where the site says so. */
  sharing: sharingSchema.optional(),
  /** Nobody takes its place at its time limit: it drains when it is warned. */
  leaves_when_warned: z.literal(true).optional(),
  /** So long before its time limit, s, or up to a minute earlier, Slurm warns it; absent: nobody said. */
  warned_before_s: z.number().positive().optional(),
  /** Absent: it takes no part in the gossip. */
  mesh: meshSettingsSchema.optional(),
  heartbeat_ms: z.int().min(100).default(1000),
});
export type LaunchSpec = z.infer<typeof launchSchema>;
