/**
 * What products that read weights where they are (HybridGEMM) give a streamed model by themselves: the same executor,
 * arena and requests with them and without (C2CServe's Fig. 13 puts its kernel into a baseline). Where there are none,
 * nothing is measured, and the log says so.
 */
import type { OpenedProducts } from '../../agent/streaming/hybrid-opening.ts';
import { openStreamingEngine } from '../../agent/streaming/open-streaming.ts';
import type { StreamMeter } from '../../agent/streaming/stream-meter.ts';
import type { StreamingArena } from '../../agent/streaming/streaming-arena.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { BenchResult } from '../result.ts';
import { median, request } from './requests.ts';

const measured_steps = 12;
/** Of a layer; the head is one more. */
const matrices_per_layer = 7;
/** Before the first matrix is packed, and until the last shape was compared. */
const steps_beside = 4;

type OpenProducts = (meter: StreamMeter) => OpenedProducts | undefined;

interface MeasuredSteps {
  ms: number;
  /** Of a step. */
  products: number;
}

/** @returns a row for each number of sequences that decode; none where there are no such products */
export function kernelAlone(
  options: EngineOptions,
  arena: StreamingArena,
  open: OpenProducts,
  batches: readonly number[],
  log: (line: string) => void,
): BenchResult[] {
  return batches.flatMap((decoding): BenchResult[] => {
    const hybrid = measuredSteps(options, arena, decoding, open, log);
    if (hybrid === undefined) return [];
    const ring = measuredSteps(options, arena, decoding, undefined, log)!;
    return [
      {
        what: `decode step of ${decoding}, HybridGEMM alone (Fig. 13): ${hybrid.products.toFixed(0)} products of a step read weights in host memory`,
        unit: 'ms',
        ours: hybrid.ms,
        peer: 'the ring alone',
        theirs: ring.ms,
        ratio: ring.ms / hybrid.ms,
        bar: '',
        holds: null,
      },
    ];
  });
}

function measuredSteps(
  options: EngineOptions,
  arena: StreamingArena,
  decoding: number,
  open: OpenProducts | undefined,
  log: (line: string) => void,
): MeasuredSteps | undefined {
  let opened: OpenedProducts | undefined;
  const { engine, executor } = openStreamingEngine(options, arena, {
    products: (meter) => (opened = open?.(meter)),
  });
  try {
    const products = opened && 'products' in opened ? opened.products : undefined;
    if (open && !products) {
      const why = opened && 'because' in opened ? opened.because : 'no library of them, or no device of CUDA';
      log(`products that read weights in host memory are not measured: ${why}`);
      return undefined;
    }
    // A matrix is packed with each step.
    const warm = steps_beside + (products ? matrices_per_layer * executor.model.n_layer + 1 : 0);
    for (let id = 0; id < decoding; id++)
      engine.add(request(id, 8 + id, 1 + steps_beside + warm + measured_steps));
    for (let step = 0; step < warm; step++) engine.step();
    const before = products?.products ?? 0;
    const times = Array.from({ length: measured_steps }, () => {
      const began_ms = performance.now();
      engine.step();
      return performance.now() - began_ms;
    });
    if (products?.because !== undefined) log(products.because);
    return { ms: median(times), products: ((products?.products ?? 0) - before) / measured_steps };
  } finally {
    engine.close();
  }
}
