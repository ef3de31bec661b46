/** Pools and the engines in them, for tests. */
import type { EngineOpening } from '../../../agent/engine/engine-opening.ts';
import type { NativeEngine } from '../../../agent/engine/native-engine.ts';
import type { DevicePool } from '../../../agent/memory/device-pool.ts';
import type { ModelUse, WeightLoad } from '../../../agent/memory/pooled-loading.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { engineOptions } from '../engine/support.ts';

export const mib = 2 ** 20;

export interface Opened {
  engine: NativeEngine;
  load: WeightLoad;
}

export function openIn(
  pool: DevicePool,
  path: string,
  use: ModelUse = {},
  more: Partial<EngineOptions> = {},
): Opened {
  let load: WeightLoad | undefined;
  const options = engineOptions(path, { kv_tokens: 512, ...more });
  const engine = finish(pool.open(options, { ...use, on_loaded: (done) => (load = done) }));
  return { engine, load: load! };
}

/** Works at a load until it is over. */
export function finish(opening: EngineOpening): NativeEngine {
  for (;;) {
    const engine = opening.advance(true);
    if (engine) return engine;
  }
}

export function codeOf(act: () => unknown): string {
  try {
    act();
  } catch (error) {
    if (error instanceof HpcserveError) return error.code;
    throw error;
  }
  return 'none';
}
