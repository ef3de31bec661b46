/** Child process of the bench: an engine of a whole model, the coordinator of a pipeline, or another stage of it. */
import { cpuBackend } from '../../agent/backend/cpu/cpu-backend.ts';
import { openModelFile } from '../../agent/engine/model-file.ts';
import { NativeEngine } from '../../agent/engine/native-engine.ts';
import { Stage } from '../../agent/engine/stage.ts';
import { stageOptions } from '../../agent/engine/stage-options.ts';
import { kindOf } from '../../agent/pipeline/frame.ts';
import { PipelineOpening } from '../../agent/pipeline/open-pipeline.ts';
import type { PipelineExecutor } from '../../agent/pipeline/pipeline-executor.ts';
import { PipelineStage } from '../../agent/pipeline/pipeline-stage.ts';
import { RingPort } from '../../agent/pipeline/ring-port.ts';
import { toldFacts } from '../../agent/pipeline/told-facts.ts';
import { argmax } from '../../agent/text/sampling/greedy.ts';
import { loadGgml } from '../../native/ggml.ts';
import type { EngineOptions, StatelessSampling } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface PipelineSetup {
  model_path: string;
  threads: number;
  sequences: number;
  /** Least time of a batch at a stage, ms: the declared speed of its device. Absent: as fast as it can. */
  step_ms?: number | undefined;
  /** Absent: the whole model. */
  place?: { stage: number; stages: number; begin: number; end: number; listen: string; next: string };
}

export interface BatchTask {
  steps: number;
  round: number;
}

export interface BatchAnswer {
  /** Tokens a second. */
  rate: number;
  /** What a batch takes at each stage, mean of the last ones; of a whole model none. */
  computed_us: number[];
}

const prompt_tokens = 64;
const greedy: StatelessSampling = {
  temperature: 0,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  typical_p: 1,
  seed: 1,
  choice: 0,
};
const signal = new Int32Array(new SharedArrayBuffer(4));
/** Wakes nobody: to wait on it is to sleep. */
const nobody = new Int32Array(new SharedArrayBuffer(4));

function engineOptions({ model_path, threads, sequences, place }: PipelineSetup): EngineOptions {
  const options: EngineOptions = {
    model_path,
    threads,
    context_tokens: 640,
    max_sequences: sequences,
    prefill_chunk_tokens: 512,
    kv_tokens: 640 * sequences,
    kv_type: 'f16',
    batch_invariant: false,
    kernels: 'own',
  };
  if (place) options.stage = { begin: place.begin, end: place.end };
  return options;
}

function openEngine(setup: PipelineSetup): NativeEngine | undefined {
  const options = engineOptions(setup);
  const { place } = setup;
  if (!place) return new NativeEngine(options);
  const file = openModelFile(setup.model_path);
  const stage = new Stage(cpuBackend(loadGgml()), file, stageOptions(options, {}));
  const device = `process ${place.stage}`;
  const facts = toldFacts(file, options, { ...place, device, device_identity: device });
  const port = new RingPort(place.listen, place.next, {
    signal,
    meanwhile: () => false,
    fabrics: undefined,
    news: () => undefined,
  });
  if (place.stage > 0) {
    process.send!({ ready: true });
    serve(new PipelineStage(stage, place, facts), port, setup);
    return undefined;
  }
  const opening = new PipelineOpening(stage, port, facts);
  for (;;) {
    const seen = Atomics.load(signal, 0);
    const executor = opening.advance();
    if (executor) {
      pipeline = executor;
      return new NativeEngine(options, undefined, { file, executor });
    }
    Atomics.wait(signal, 0, seen, 1000);
  }
}

/** Returns once a batch that began then has taken its declared time. */
function keepPace({ step_ms = 0 }: PipelineSetup, began_ms: number): void {
  const left_ms = step_ms - (performance.now() - began_ms);
  if (left_ms > 0) Atomics.wait(nobody, 0, 0, left_ms);
}

/** Until the process is killed. */
function serve(stage: PipelineStage, port: RingPort, setup: PipelineSetup): never {
  for (;;)
    try {
      const bytes = port.receive();
      const began_ms = performance.now();
      const isBatch = kindOf(bytes) === 'batch';
      const next = stage.take(bytes);
      if (isBatch) keepPace(setup, began_ms);
      if (next) port.send(next);
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      stage.interrupt();
    }
}

/** @returns tokens per second of so many sequences, once all of them decode */
function decode(engine: NativeEngine, setup: PipelineSetup, { steps, round }: BatchTask): number {
  const { sequences } = setup;
  for (let sequence = 0; sequence < sequences; sequence++)
    engine.add({
      id: round * sequences + sequence,
      prompt_tokens: Int32Array.from(
        { length: prompt_tokens },
        (_, index) => (index * 7919 + round * 104_729 + sequence * 31) % engine.info.n_vocab,
      ),
      sampler: {
        stateless: greedy,
        take: () => undefined,
        sample: (logits) => ({ token: argmax(logits) }),
      },
      max_new_tokens: steps + 8,
      stop_tokens: new Set(),
    });
  const made = new Map<number, number>();
  const step = (): void => {
    const began_ms = performance.now();
    for (const { id, token } of engine.step().outputs) if (token) made.set(id, (made.get(id) ?? 0) + 1);
    keepPace(setup, began_ms);
  };
  const tokens = (): number => [...made.values()].reduce((sum, count) => sum + count, 0);
  while (made.size < sequences) step();
  const before = tokens();
  const started = performance.now();
  while (tokens() - before < steps * sequences) step();
  const rate = (1000 * (tokens() - before)) / (performance.now() - started);
  for (let sequence = 0; sequence < sequences; sequence++) engine.cancel(round * sequences + sequence);
  while (engine.busy) engine.step();
  return rate;
}

function answerTo(task: BatchTask): BatchAnswer {
  const rate = decode(engine!, setup, task);
  return { rate, computed_us: pipeline?.stages.map((stage) => stage.computed_us) ?? [] };
}

let engine: NativeEngine | undefined;
let pipeline: PipelineExecutor | undefined;
let setup: PipelineSetup;
process.on('message', (message: PipelineSetup | BatchTask) => {
  if ('model_path' in message) {
    setup = message;
    engine = openEngine(message);
    process.send!({ ready: true });
  } else process.send!(answerTo(message));
});
