/** An answer that leaves in parts, and ends or gives way between two of them. */
import { expect, test } from 'vitest';
import type { HeldRows, KvAsk } from '../../../agent/device-worker/compute/kv-messages.ts';
import type { Submission } from '../../../agent/device-worker/compute/messages.ts';
import { newLeaving, sendComputed, stopAndSend } from '../../../agent/device-worker/moving/answer-move.ts';
import type { MovableModels } from '../../../agent/device-worker/moving/movable-models.ts';
import type { KvPeer, KvSource } from '../../../agent/transfer/kv-source.ts';

const part = 16;
const computed = 100;
const peer = { session_id: 'peer' } as KvPeer;
const submission = { id: 1, model: 'm', choice: 0 } as Submission;

/** A sequence that runs until so many were asked for. */
function running(parts: number) {
  const asked: string[] = [];
  const sent: [number, number][] = [];
  let held = 0;
  const movable = {
    formatOf: () => ({}),
    layersOf: () => 2,
    withRoom: (use: (into: undefined) => Promise<unknown>) => use(undefined),
    ask: async (ask: KvAsk): Promise<HeldRows | undefined> => {
      asked.push(ask.do);
      if (ask.do === 'let_go') return undefined;
      if (ask.do !== 'hold' && ask.do !== 'detach') throw new Error(`nobody asks ${ask.do}`);
      if (held++ >= parts) return undefined;
      const begin = ask.from ?? 0;
      const placed = Math.min(computed, begin + part);
      const runs = placed > begin ? [{ tokens: { begin, end: placed }, pieces: [] }] : [];
      return { tokens: new Int32Array(computed), computed, placed, runs };
    },
  } as unknown as MovableModels;
  const source = {
    send: async (_: KvPeer, { offer }: { offer: { tokens: { begin: number; end: number } } }) => {
      sent.push([offer.tokens.begin, offer.tokens.end]);
      return { way: 'sendfile', bytes: 1, elapsed_ms: 1 };
    },
  } as unknown as KvSource;
  return { rows: { movable, source }, asked, sent };
}

test('all of it goes, one part after another', async () => {
  const { rows, sent } = running(Number.POSITIVE_INFINITY);
  const one = newLeaving('kv', submission);
  expect(await sendComputed(rows, peer, one)).toMatchObject({ bytes: 7 });
  expect(sent.at(0)).toEqual([0, 16]);
  expect(sent.at(-1)).toEqual([96, 100]);
  expect(one.sent).toBe(computed);
  expect(one.detached).toBe(false);
});

test('one that ends between two parts is left, and every hold is let go', async () => {
  const { rows, asked, sent } = running(2);
  const one = newLeaving('kv', submission);
  await sendComputed(rows, peer, one);
  expect(sent).toHaveLength(2);
  expect(asked.filter((each) => each === 'let_go')).toHaveLength(3);
});

test('one that has ended before it was stopped has not moved', async () => {
  const { rows } = running(0);
  const one = newLeaving('kv', submission);
  expect(await stopAndSend(rows, peer, one)).toEqual({ stopped: false, sent: undefined });
  expect(one.detached).toBe(false);
});
