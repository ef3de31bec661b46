/** Steps of sequences that decode, resident and streamed in turns, with copies alone between them. */
import { NativeEngine } from '../../agent/engine/native-engine.ts';
import { openStreamingEngine } from '../../agent/streaming/open-streaming.ts';
import type { StreamingArena } from '../../agent/streaming/streaming-arena.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { BenchResult } from '../result.ts';
import { copyRound_ms } from './copy-alone.ts';
import { median, request } from './requests.ts';

const pairs = 12;
/** One behind the other: the first begins with an empty ring, and each of the others with what came before it. */
const steps_in_a_row = 4;

/** Medians, of a step each. */
interface Times {
  compute_ms: number;
  copy_ms: number;
  /** By the threads that copy alone. */
  unhelped_ms: number;
  /** From an empty ring. */
  first_ms: number;
  /** One behind the other. */
  next_ms: number;
}

export function decodeSteps(
  options: EngineOptions,
  arena: StreamingArena,
  decoding: number,
  log: (line: string) => void,
): BenchResult[] {
  const resident = new NativeEngine(options, arena.backend);
  const { engine, executor } = openStreamingEngine(options, arena);
  const told: number[][] = [[], []];
  for (const one of [resident, engine])
    for (let id = 0; id < decoding; id++) one.add(request(id, 8 + id, 900));
  const step_ms = (one: NativeEngine, tokens: number[]): number => {
    const began_ms = performance.now();
    for (const { id, token } of one.step().outputs) if (token) tokens.push(id, token.token);
    return performance.now() - began_ms;
  };
  const streamed_ms = (): number => step_ms(engine, told[1]!);
  for (let warm = 0; warm < 4; warm++) streamed_ms();
  const lists = {
    compute_ms: [] as number[],
    copy_ms: [] as number[],
    unhelped_ms: [] as number[],
    first_ms: [] as number[],
    next_ms: [] as number[],
  };
  for (let pair = 0; pair < pairs; pair++) {
    lists.copy_ms.push(copyRound_ms(executor.stream, arena, true));
    lists.unhelped_ms.push(copyRound_ms(executor.stream, arena, false));
    lists.compute_ms.push(step_ms(resident, told[0]!));
    lists.first_ms.push(streamed_ms());
    for (let next = 1; next < steps_in_a_row; next++) lists.next_ms.push(streamed_ms());
  }
  while (told[0]!.length < told[1]!.length) step_ms(resident, told[0]!);
  const times = Object.fromEntries(
    Object.entries(lists).map(([name, values]) => [name, median(values)]),
  ) as unknown as Times;
  const { link, waited_ms, streamed_bytes } = executor.statistics;
  log(
    `streamed ${mb(streamed_bytes)} MB, waited ${waited_ms.toFixed(0)} ms for them, ${link ? mb(link.bytes_per_s) : '?'} MB/s a thread`,
  );
  log(
    `medians of ${pairs}: arithmetic alone ${times.compute_ms.toFixed(1)} ms, copies alone ${times.copy_ms.toFixed(1)} ms, streamed ${times.first_ms.toFixed(1)} ms`,
  );
  resident.close();
  engine.close();
  return [tokensRow(decoding, told), ...stepRows(options, arena, decoding, times)];
}

function tokensRow(decoding: number, [theirs, ours]: readonly number[][]): BenchResult {
  const wrong = theirs!.filter((value, index) => value !== ours![index]).length;
  return {
    what: `tokens of ${decoding} that decode which differ from those of the resident model, of ${theirs!.length / 2}`,
    unit: 'tokens',
    ours: wrong,
    peer: '',
    theirs: null,
    ratio: null,
    bar: '0',
    holds: wrong === 0 && theirs!.length === ours!.length,
  };
}

/**
 * The floor that is asked for, and what keeps from it: the thread that computes helps in copies alone, so that both
 * together take all threads longer than either, by the time that either has of them.
 */
function stepRows(
  { threads = 1 }: EngineOptions,
  { copy_threads }: StreamingArena,
  decoding: number,
  { compute_ms, copy_ms, unhelped_ms, first_ms, next_ms }: Times,
): BenchResult[] {
  const what = `decode step of ${decoding}, model four times the arena`;
  const copying = `${copy_threads} ${copy_threads === 1 ? 'thread copies' : 'threads copy'}`;
  const floor_ms = Math.max(compute_ms, copy_ms);
  const busy_ms = copy_ms + (threads * compute_ms) / (threads + copy_threads);
  const row = (of: string, ours: number, peer: string, theirs: number): BenchResult => {
    return { what: of, unit: 'ms', ours, peer, theirs, ratio: theirs / ours, bar: '', holds: null };
  };
  return [
    {
      ...row(
        `${what}, from an empty ring; ${copying}, who computes helps while it waits`,
        first_ms,
        copy_ms > compute_ms ? 'copies alone' : 'arithmetic alone',
        floor_ms,
      ),
      bar: 'ratio ≥ 0.85',
      holds: floor_ms / first_ms >= 0.85,
    },
    row(`${what}, one behind the other`, next_ms, 'the same', floor_ms),
    row(
      `${what}, one behind the other`,
      next_ms,
      unhelped_ms > compute_ms ? `copies alone, which nobody helps` : 'arithmetic alone',
      Math.max(compute_ms, unhelped_ms),
    ),
    row(
      `${what}, one behind the other`,
      next_ms,
      'all threads busy with copies and arithmetic',
      Math.max(compute_ms, busy_ms),
    ),
  ];
}

export function mb(bytes: number): string {
  return (bytes / 1e6).toFixed(0);
}
