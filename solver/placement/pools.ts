/** Models with prefill and decode pools, as placement counts with them: each pool as a model of its own. */

import { type PoolName, plannedName, poolNames, servedNameOf } from '../../spec/model-pools.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { NodeKindOffer, PlacementModel } from '../../spec/plan.ts';
import { findInterconnect } from '../catalog/devices.ts';
import { assumedInterconnects } from '../catalog/interconnects.ts';
import { kvBytesPerToken } from '../catalog/kv-type.ts';
import { workloadOf } from './model-facts.ts';

/** A model as placement is asked for it; one without pools is itself. */
export function poolsOf(model: PlacementModel): PlacementModel[] {
  const { pools } = model.spec;
  if (pools === undefined) return [model];
  return poolNames.map((pool) => ({ ...model, spec: specOf(model.spec, pool, pools[pool]), pool }));
}

/** What a job is told of the model: the name by which clients know it. */
export function servedSpec(spec: ModelSpec): ModelSpec {
  return { ...spec, name: servedNameOf(spec.name) };
}

/** What people should know of a pool, one sentence each. @param offer nodes that it is on */
export function poolWords(model: PlacementModel, offer: NodeKindOffer): string[] {
  const { pool, spec } = model;
  if (pool === undefined) return [];
  const other = plannedName(servedNameOf(spec.name), pool === 'prefill' ? 'decode' : 'prefill');
  if (pool === 'decode')
    return [
      `goes on with answers whose prompts ${other} has computed, from their first or second token on; computes itself what is too short to be worth a handover`,
    ];
  const token_bytes = kvBytesPerToken('native', model, spec.precision);
  const { input_tokens } = workloadOf(model);
  const { name, bandwidth_bytes_per_s } = findInterconnect(
    assumedInterconnects[offer.interconnect ?? 'ethernet'],
  );
  const bytes = token_bytes * input_tokens;
  return [
    `computes prompts and sends their KV to ${other} while it computes: ${megabytes(bytes)} for ${Math.round(input_tokens)} tokens, which take ${milliseconds(bytes / bandwidth_bytes_per_s)} over ${name}; where nobody takes an answer, it decodes it itself`,
  ];
}

function specOf(
  { pools: _, ...model }: ModelSpec,
  pool: PoolName,
  own: NonNullable<ModelSpec['pools']>[PoolName],
): ModelSpec {
  const spec: ModelSpec = {
    ...model,
    name: plannedName(model.name, pool),
    engine: 'native',
    replicas: own.replicas,
  };
  if (own.devices !== undefined) spec.devices = own.devices;
  if (own.max_sequences !== undefined) spec.max_sequences = own.max_sequences;
  if (own.prefill_chunk_tokens !== undefined) spec.prefill_chunk_tokens = own.prefill_chunk_tokens;
  return spec;
}

function megabytes(bytes: number): string {
  return `${Number((bytes / 2 ** 20).toPrecision(2))} MiB`;
}

function milliseconds(seconds: number): string {
  return `${Number((1000 * seconds).toPrecision(2))} ms`;
}
