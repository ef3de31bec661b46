/** Rows that come in parts: what follows what was given up meanwhile is refused, as is a late word of another try. */
import { expect, test } from 'vitest';
import type { SequencesAsk } from '../../../../agent/device-worker/compute/kv-messages.ts';
import { KvMoves } from '../../../../agent/device-worker/compute/kv-moves.ts';
import type { FromCompute } from '../../../../agent/device-worker/compute/messages.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { engineOptions, model } from '../../engine/support.ts';

type Moves = ConstructorParameters<typeof KvMoves>;

test('rows behind those that are not here any more are refused, and never remembered', async () => {
  const engine = new NativeEngine(engineOptions(await model('tiny-llama', 'Q8_0'), { kv_tokens: 512 }));
  let entered = 0;
  const enter = (): (() => void) => {
    entered++;
    return () => entered--;
  };
  const hosted = { name: 'm', engine, closed: false, enter };
  // Who comes takes a place in the schedule and gives it back: nothing else of it is asked.
  const schedule = { admit: () => undefined, cancelled: () => undefined };
  const told: FromCompute[] = [];
  const models = { get: () => ({ hosted }) };
  const moves = new KvMoves(models as unknown as Moves[0], schedule as unknown as Moves[1], (message) =>
    told.push(message),
  );
  const answer = (asked: SequencesAsk): string | undefined => {
    moves.answer(1, asked);
    const last = told.at(-1) as FromCompute & { type: 'kv' };
    return last.error?.code;
  };
  const tokens = Int32Array.from({ length: 64 }, (_, at) => at + 1);
  const part = (begin: number, end: number, reservation: number): SequencesAsk => ({
    do: 'reserve',
    model: 'm',
    arrival: 'a',
    scope: undefined,
    tokens,
    runs: [{ begin, end }],
    reservation,
  });

  expect(answer(part(0, 32, 1))).toBeUndefined();
  // One at a time, and whoever was given up says nothing of the one after it.
  expect(answer(part(0, 32, 2))).toBe('E_KV_STALE');
  expect(answer({ do: 'abort', arrival: 'a', reservation: 7 })).toBeUndefined();
  expect(answer({ do: 'commit', arrival: 'a', reservation: 1 })).toBeUndefined();
  expect(answer(part(16, 48, 3))).toBe('E_KV_STALE');
  expect(answer(part(32, 48, 3))).toBeUndefined();
  expect(answer({ do: 'commit', arrival: 'a', reservation: 3 })).toBeUndefined();

  // KV is short: what had come is kept as any prompt is, and the next part does not follow anything.
  expect(moves.giveUp('m')).toBe(true);
  expect(answer(part(48, 64, 4))).toBe('E_KV_STALE');
  expect(answer({ do: 'commit', arrival: 'a', reservation: 4 })).toBe('E_KV_ROOM');
  moves.close();
  expect(entered).toBe(0);
  engine.verify();
  engine.close();
});
