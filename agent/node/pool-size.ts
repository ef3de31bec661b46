/** How large the memory pool of a device worker may become, so that plan, job and worker mean the same. */
import { totalmem } from 'node:os';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { defaultPlacementSettings, pool_share } from '../../spec/plan.ts';
import { frameMemory_bytes } from '../../spec/worker-memory.ts';
import type { ProcessContext } from './serving-process.ts';

type PoolContext = Pick<ProcessContext, 'group' | 'memory_limit_bytes' | 'planned_memory_bytes' | 'sharing'>;

/**
 * What the plan gave the job (weights, KV, and a reserve for programs) or the site says, and no more than the devices
 * have and the job may use. A job that is limited to what the plan gave it has all of that but the reserve: as much as
 * the plan counted on. Devices that are only stood in for have no more memory than the host.
 * @param total_bytes of the host's memory
 */
export function poolSize_bytes(context: PoolContext, total_bytes = totalmem()): number {
  const { planned_memory_bytes, sharing } = context;
  if (isAccelerator(context)) return acceleratorPool_bytes(context);
  const { usable_bytes, host_bytes } = usable(context, total_bytes);
  const share = Math.floor(pool_share * usable_bytes);
  const programs_bytes =
    defaultPlacementSettings.host_overhead_bytes * Math.min(1, usable_bytes / host_bytes);
  const reserve = programs_bytes + framesOf_bytes(context);
  const most = Math.max(share, Math.floor(usable_bytes - reserve));
  const asked = sharing?.pool_gb === undefined ? planned_memory_bytes : Math.floor(1e9 * sharing.pool_gb);
  return Math.min(most, asked ?? share);
}

/**
 * A model whose weights alone are more than the pool is not read for minutes first.
 * @param total_bytes of the host's memory
 * @throws HpcserveError E_POOL_FULL
 */
export function checkPool(
  { model, weight_bytes: all_bytes, memory }: UnitSpec,
  context: PoolContext,
  total_bytes = totalmem(),
): void {
  const pool_bytes = poolSize_bytes(context, total_bytes);
  const arena_bytes = memory?.arena_bytes;
  const weight_bytes = arena_bytes ?? all_bytes;
  if (weight_bytes <= pool_bytes) return;
  const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  const { memory_limit_bytes, planned_memory_bytes, sharing } = context;
  const weights =
    arena_bytes === undefined
      ? `${gib(weight_bytes)} of weights`
      : `an arena of ${gib(arena_bytes)} for its weights`;
  throw new HpcserveError('E_POOL_FULL', {
    what: `the model ${model.name} has ${weights}, and the memory pool of its device ${gib(pool_bytes)}`,
    because: [
      ...(isAccelerator(context)
        ? context.group.devices.map(
            ({ description }) => `${description.model} has ${gib(description.memory_bytes)}`,
          )
        : memory_limit_bytes === undefined
          ? [`the node has ${gib(total_bytes)}`]
          : [`the job may use ${gib(memory_limit_bytes)} on this node`]),
      ...(planned_memory_bytes === undefined ? [] : [`the plan gave it ${gib(planned_memory_bytes)}`]),
      ...(sharing?.pool_gb === undefined
        ? []
        : [`the site config sets sharing.pool_gb to ${sharing.pool_gb}`]),
    ],
    try: 'see whether the job got the memory that the plan asked for (`hpcserve plan`), or give it more',
    details: { weight_bytes, pool_bytes },
  });
}

/** Of the pipelines that have a stage on the device, or may get one. */
function framesOf_bytes({ group }: PoolContext): number {
  const pipelines = group.units.filter(({ stages }) => stages !== undefined);
  return pipelines.reduce((sum, { nodes = 1 }) => sum + frameMemory_bytes(nodes), 0);
}

/** Memory of its own; what a CPU stands in for has the host's. */
function isAccelerator({ group }: PoolContext): boolean {
  return group.devices.some(({ ggml_device }) => ggml_device !== undefined);
}

/**
 * A GPU is the job's alone, and the pool has its share of it. One that only ggml knows may have its memory from the
 * host, which others use: its pool is what the plan gave its models.
 */
function acceleratorPool_bytes({ group, sharing }: PoolContext): number {
  const device_bytes = group.devices.reduce((sum, { description }) => sum + description.memory_bytes, 0);
  const share = Math.floor(pool_share * device_bytes);
  if (sharing?.pool_gb !== undefined) return Math.min(device_bytes, Math.floor(1e9 * sharing.pool_gb));
  const planned = group.units.map(({ memory }) => memory);
  if (!group.devices.some(({ only_ggml }) => only_ggml) || planned.includes(undefined)) return share;
  // Models whose weights are streamed have one arena.
  const arena_bytes = Math.max(0, ...planned.map((memory) => memory?.arena_bytes ?? 0));
  const resident_bytes = planned.reduce((sum, memory) => sum + (memory?.resident_bytes ?? 0), 0);
  return Math.min(share, plannedBeside_bytes(group.units) + arena_bytes + resident_bytes);
}

/** What the plan gave the models of a device, but for the arena of those that are streamed and the layers that stay. */
export function plannedBeside_bytes(units: readonly Pick<UnitSpec, 'memory'>[]): number {
  // Those that give way to one another have what is there for two of them.
  const reuse_bytes = Math.max(0, ...units.map(({ memory }) => memory?.reuse_bytes ?? 0));
  return units.reduce((sum, { memory }) => {
    if (memory === undefined || memory.reuse_bytes !== undefined) return sum;
    const { device_bytes, arena_bytes = 0, resident_bytes = 0 } = memory;
    return sum + device_bytes - arena_bytes - resident_bytes;
  }, reuse_bytes);
}

function usable(
  { group, memory_limit_bytes }: PoolContext,
  total_bytes: number,
): { usable_bytes: number; host_bytes: number } {
  const devices = group.devices.reduce((sum, { description }) => sum + description.memory_bytes, 0);
  const host_bytes = Math.min(total_bytes, memory_limit_bytes ?? Number.POSITIVE_INFINITY);
  return { usable_bytes: Math.min(devices > 0 ? devices : host_bytes, host_bytes), host_bytes };
}
