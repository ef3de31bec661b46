/**
 * The first token of a model of which nothing is on the device, its file in the page cache: streamed from the first
 * token on, and beside it loaded first and then run, on the same device. What a server, a container or a runtime takes
 * to start is in neither; the paper's systems start them, too.
 */
import type { NativeEngine } from '../../agent/engine/native-engine.ts';
import { DevicePool } from '../../agent/memory/device-pool.ts';
import { openHybridProducts } from '../../agent/streaming/hybrid-opening.ts';
import { openStreamingEngine } from '../../agent/streaming/open-streaming.ts';
import type { StreamingArena } from '../../agent/streaming/streaming-arena.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { BenchResult } from '../result.ts';
import { median, request } from './requests.ts';

const prompts = [512, 1] as const;
const pairs = 3;
/** KV, and what alignment takes beside weights. */
const beside_bytes = 512 * 2 ** 20;
const paper =
  'the paper, over whole systems: 7.1× at most for dense models, 4.6 to 5.0× for mixtures, 1.95× over ServerlessLLM on Qwen3-30B-A3B';

interface ColdStart {
  path: string;
  file_bytes: number;
  options: EngineOptions;
  /** Threads of a model that has the device alone. */
  threads: number;
}

/** @returns a row for each length of a prompt */
export async function coldStarts(
  { path, file_bytes, options, threads }: ColdStart,
  arena: StreamingArena,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const own = { ...options, model_path: path, kv_tokens: options.context_tokens, max_sequences: 1 };
  const pool = new DevicePool(arena.backend, { pool_bytes: file_bytes + beside_bytes, threads });
  let id = 0;
  const firstToken_ms = (open: () => NativeEngine, tokens: number): number => {
    const began_ms = performance.now();
    const engine = open();
    engine.add(request(id, tokens, 1, id++));
    while (engine.busy) engine.step();
    const ms = performance.now() - began_ms;
    engine.close();
    return ms;
  };
  const streamed = (): NativeEngine =>
    openStreamingEngine(own, arena, {
      products: (meter) =>
        openHybridProducts({
          backend: arena.backend,
          meter,
          arena_bytes: arena.ring.bytes,
          locked_bytes: file_bytes,
        }),
    }).engine;
  const loaded = (): NativeEngine => {
    pool.store.clear();
    const opening = pool.open({ ...own, threads });
    for (;;) {
      const engine = opening.advance(true);
      if (engine) return engine;
    }
  };
  try {
    return prompts.map((tokens) => {
      const times = { streamed: [] as number[], loaded: [] as number[] };
      // The first pair brings the file into memory, and compiles what is compiled at its first use.
      for (let pair = 0; pair <= pairs; pair++) {
        const [ours_ms, theirs_ms] = [firstToken_ms(streamed, tokens), firstToken_ms(loaded, tokens)];
        if (pair === 0) continue;
        times.streamed.push(ours_ms);
        times.loaded.push(theirs_ms);
      }
      const [ours, theirs] = [median(times.streamed), median(times.loaded)];
      log(
        `cold start, prompt of ${tokens}: streamed ${ours.toFixed(0)} ms, loaded and run ${theirs.toFixed(0)} ms`,
      );
      return {
        what: `first token of a prompt of ${tokens} of a model that was not there (${paper})`,
        unit: 'ms',
        ours,
        peer: 'loaded, then run',
        theirs,
        ratio: theirs / ours,
        bar: '',
        holds: null,
      };
    });
  } finally {
    await pool.close();
  }
}
