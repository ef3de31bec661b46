/**
 * Child process of the bench: holds one engine and runs one task at a time. It answers after its threads
 * have gone to sleep, since both engines' threads spin for a while and would disturb the other's turn.
 */
import { NativeEngine } from '../../agent/engine/native-engine.ts';
import { LlamaContext } from '../../native/llama-context.ts';
import { backendOf } from '../device.ts';
import {
  type Answer,
  batch_context_tokens,
  batch_sequences,
  batch_steps,
  decode_context_tokens,
  decode_tokens,
  kv_tokens,
  type Measured,
  prefill_tokens,
  type Task,
  type WorkerSetup,
} from './protocol.ts';

interface Runner {
  weight_bytes: number;
  run(task: Task): Measured;
}

/** CPU time below this share of a watched interval counts as asleep. */
const asleep_share = 0.1;
const watch_interval_ms = 40;
const sleep_deadline_ms = 30_000;
/** More than any model has. */
const all_layers = 999;

type PromptOf = (length: number, round: number, sequence: number) => Int32Array;

function promptsOf({ n_vocab }: WorkerSetup): PromptOf {
  const tokens = Math.min(100_000, n_vocab);
  return (length, round, sequence) =>
    Int32Array.from({ length }, (_, index) => (index * 7919 + round * 104_729 + sequence * 31) % tokens);
}

function argmax(row: Float32Array): number {
  let best = 0;
  for (let index = 1; index < row.length; index++) if (row[index]! > row[best]!) best = index;
  return best;
}

function measure(tokens: number, work: () => void): Measured {
  const started = performance.now();
  const before = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(before);
  return { tokens, elapsed_ms: performance.now() - started, cpu_ms: (user + system) / 1000 };
}

function nativeRunner(setup: WorkerSetup): Runner {
  const promptOf = promptsOf(setup);
  const options = {
    model_path: setup.model_path,
    threads: setup.threads,
    context_tokens: 640,
    max_sequences: batch_sequences,
    prefill_chunk_tokens: prefill_tokens,
    kv_tokens,
    kv_type: 'f16' as const,
    batch_invariant: setup.contender === 'native invariant',
  };
  const { device } = setup;
  const engine = new NativeEngine(options, device === undefined ? undefined : backendOf(device));
  let id = 0;
  const add = (prompt_tokens: Int32Array, max_new_tokens: number): void =>
    engine.add({
      id: id++,
      prompt_tokens,
      sampler: { sample: (logits) => ({ token: argmax(logits) }) },
      max_new_tokens,
      stop_tokens: new Set(),
    });
  const drain = (): void => {
    while (engine.busy) engine.step();
  };
  const steps = (count: number): void => {
    for (let index = 0; index < count; index++) engine.step();
  };
  const tasks: Record<Task['kind'], (round: number) => Measured> = {
    prefill(round) {
      add(promptOf(prefill_tokens, round, 0), 1);
      return measure(prefill_tokens, drain);
    },
    decode(round) {
      add(promptOf(decode_context_tokens, round, 0), decode_tokens + 2);
      steps(2);
      const measured = measure(decode_tokens, () => steps(decode_tokens));
      drain();
      return measured;
    },
    batch(round) {
      for (let sequence = 0; sequence < batch_sequences; sequence++)
        add(promptOf(batch_context_tokens, round, sequence), batch_steps + 2);
      steps(2);
      const measured = measure(batch_sequences * batch_steps, () => steps(batch_steps));
      drain();
      return measured;
    },
  };
  return { weight_bytes: engine.stats().weight_bytes, run: ({ kind, round }) => tasks[kind](round) };
}

function libllamaRunner(setup: WorkerSetup): Runner {
  const context = new LlamaContext({
    model_path: setup.model_path,
    threads: setup.threads,
    n_ctx: kv_tokens,
    n_seq_max: batch_sequences,
    gpu_layers: setup.device === undefined ? 0 : all_layers,
  });
  const promptOf = promptsOf(setup);
  /** Computes the prompts of several sequences and gives the next token of each. */
  const prefill = (prompts: readonly Int32Array[]): number[] => {
    context.clear();
    const rows = prompts.flatMap((prompt, sequence) =>
      Array.from(prompt, (token, position) => ({
        token,
        position,
        sequence,
        output: position === prompt.length - 1,
      })),
    );
    context.decode(rows);
    let end = -1;
    return prompts.map((prompt) => {
      end += prompt.length;
      return argmax(context.logits(end));
    });
  };
  const step = (tokens: readonly number[], position: number): number[] => {
    context.decode(tokens.map((token, sequence) => ({ token, position, sequence, output: true })));
    return tokens.map((_, sequence) => argmax(context.logits(sequence)));
  };
  const generate = (round: number, sequences: number, length: number, count: number): Measured => {
    const prompts = Array.from({ length: sequences }, (_, sequence) => promptOf(length, round, sequence));
    let tokens = step(prefill(prompts), length);
    return measure(sequences * count, () => {
      for (let index = 0; index < count; index++) tokens = step(tokens, length + 1 + index);
    });
  };
  const tasks: Record<Task['kind'], (round: number) => Measured> = {
    prefill: (round) => measure(prefill_tokens, () => prefill([promptOf(prefill_tokens, round, 0)])),
    decode: (round) => generate(round, 1, decode_context_tokens, decode_tokens),
    batch: (round) => generate(round, batch_sequences, batch_context_tokens, batch_steps),
  };
  return { weight_bytes: 0, run: ({ kind, round }) => tasks[kind](round) };
}

/** Resolves when the engine's threads no longer spin. */
function asleep(): Promise<void> {
  const deadline = performance.now() + sleep_deadline_ms;
  return new Promise((resolve, reject) => {
    let before = process.cpuUsage();
    const watch = (): void => {
      const { user, system } = process.cpuUsage(before);
      before = process.cpuUsage();
      if ((user + system) / 1000 < asleep_share * watch_interval_ms) resolve();
      else if (performance.now() > deadline) reject(new Error('the threads of the engine never sleep'));
      else setTimeout(watch, watch_interval_ms);
    };
    setTimeout(watch, watch_interval_ms);
  });
}

function send(answer: Answer): void {
  process.send!(answer);
}

let runner: Runner | undefined;
process.on('message', async (message: WorkerSetup | Task) => {
  try {
    if ('contender' in message) {
      runner = message.contender === 'libllama' ? libllamaRunner(message) : nativeRunner(message);
      await asleep();
      send({ ready: true, weight_bytes: runner.weight_bytes });
    } else {
      const measured = runner!.run(message);
      await asleep();
      send({ measured });
    }
  } catch (error) {
    send({ error: error instanceof Error ? error.message : String(error) });
  }
});
