import type { PartStream } from '../../agent/streaming/part-stream.ts';
import type { StreamingArena } from '../../agent/streaming/streaming-arena.ts';

/**
 * All parts of a model brought once, one behind the other. The thread that would compute helps, as it does while it
 * waits for a part: with the copying threads alone this would be slower than streaming, and no floor.
 */
export function copyRound_ms(stream: PartStream, arena: StreamingArena): number {
  arena.rest();
  const began_ms = performance.now();
  for (const { weights } of stream.parts) {
    const load = arena.loader.begin(weights.version, weights.loads(), 'idle');
    while (!load.advance(true));
  }
  return performance.now() - began_ms;
}
