/** What the workers of a replica have of the host's memory beside what its devices hold. */
import { stageBounds } from '../../spec/model-yaml.ts';
import type { NodeKindOffer } from '../../spec/plan.ts';
import { frameMemory_bytes, staging_bytes_max } from '../../spec/worker-memory.ts';
import { onRealGpu } from './engine-choice.ts';
import type { WayOnNodes } from './way.ts';

/** On each of its devices: frames between stages. */
export function framesOf_bytes({
  engine,
  model,
  nodes,
}: Pick<WayOnNodes, 'engine' | 'model' | 'nodes'>): number {
  return engine === 'native' && stageBounds(model.spec).stages_max > 1 ? frameMemory_bytes(nodes) : 0;
}

/** On each device of the native engine, whoever shares it: memory that keys and values go through. */
export function stagingOf_bytes(offer: NodeKindOffer, { engine }: Pick<WayOnNodes, 'engine'>): number {
  return engine === 'native' && onRealGpu(offer) ? staging_bytes_max : 0;
}
