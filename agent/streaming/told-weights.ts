import type { EngineStats } from '../../spec/engine-contract.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';

/** What others are told of weights that lie in host memory; undefined where they lie on the device. */
export function toldWeights({ streamed }: EngineStats): StreamedWeights | undefined {
  if (!streamed) return undefined;
  const { waited_ms: _, ...told } = streamed;
  return told;
}
