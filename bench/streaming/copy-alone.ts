import type { PartStream } from '../../agent/streaming/part-stream.ts';
import type { StreamingArena } from '../../agent/streaming/streaming-arena.ts';

/** Between two looks at a load that others bring: a part takes milliseconds. */
const look_ms = 0.1;
const never = new Int32Array(new SharedArrayBuffer(4));

/**
 * All parts of a model brought once, one behind the other.
 * @param helps the thread that would compute copies, too, as it does while it waits for a part
 */
export function copyRound_ms(stream: PartStream, arena: StreamingArena, helps: boolean): number {
  stream.stop();
  const began_ms = performance.now();
  for (const { weights } of stream.parts) {
    const load = arena.loader.begin(weights.version, weights.loads(), 'idle');
    while (!load.advance(helps)) if (!helps) Atomics.wait(never, 0, 0, look_ms);
  }
  return performance.now() - began_ms;
}
