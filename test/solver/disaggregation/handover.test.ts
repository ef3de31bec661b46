import { describe, expect, test } from 'vitest';
import {
  type DecodePeer,
  decideHandover,
  handoverPause_s,
  leastHandover_tokens,
  type PrefillPace,
  partSize_tokens,
} from '../../../solver/disaggregation/handover.ts';

const lengths = [1, 15, 16, 17, 64, 255, 256, 257, 512, 1000, 4096, 20_000];
const paces: PrefillPace[] = [100, 2000, 50_000, undefined].flatMap((prefill_tokens_per_s) =>
  [1024, 131_072].flatMap((kv_token_bytes) =>
    [64, 512].map((chunk_tokens) => ({ prefill_tokens_per_s, kv_token_bytes, chunk_tokens })),
  ),
);
const links = [0.001, 0.05].flatMap((transfer_s) =>
  [5e6, 1e9].map((bytes_per_s) => ({ transfer_s, bytes_per_s })),
);

function peer(id: string, change: Partial<DecodePeer> = {}): DecodePeer {
  return { id, places: 4, kv_tokens: 100_000, transfer_s: 0.001, bytes_per_s: 1e9, step_s: 0.02, ...change };
}

/** Step by step: a part is sent once it is computed and the one before has been sent. */
function pauseByTime(
  tokens: number,
  pace: PrefillPace,
  link: { transfer_s: number; bytes_per_s: number },
): number {
  const part = Math.min(tokens, partSize_tokens(tokens, pace.chunk_tokens));
  let computed_s = 0;
  let sent_s = 0;
  for (let at = 0; at < tokens; at += part) {
    computed_s += part / (pace.prefill_tokens_per_s ?? 1e-9);
    sent_s = Math.max(sent_s, computed_s) + link.transfer_s + (part * pace.kv_token_bytes) / link.bytes_per_s;
  }
  return sent_s - computed_s;
}

describe('the pause of a handover', () => {
  test('is that of parts that are sent one after the other while the next are computed', () => {
    for (const pace of paces.filter(({ prefill_tokens_per_s }) => prefill_tokens_per_s !== undefined))
      for (const link of links)
        for (const parts of [1, 2, 7, 16, 160]) {
          const tokens = parts * pace.chunk_tokens;
          const pause_s = handoverPause_s(tokens, pace, link);
          const said = JSON.stringify({ tokens, pace, link });
          expect(pause_s, said).toBeCloseTo(pauseByTime(tokens, pace, link), 6);
          if (parts > 16) continue;
          // Shorter by less than a part.
          const between_s = handoverPause_s(tokens - pace.chunk_tokens / 2, pace, link);
          expect(between_s, said).toBeLessThanOrEqual(pause_s + 1e-9);
        }
  });

  test('is of the last part alone where the link keeps up, however long the prompt', () => {
    const pace = { prefill_tokens_per_s: 1000, kv_token_bytes: 1024, chunk_tokens: 256 };
    const link = { transfer_s: 0.002, bytes_per_s: 1e9 };
    expect(handoverPause_s(4096, pace, link)).toBe(handoverPause_s(1024, pace, link));
    expect(partSize_tokens(1_000_000, 256)).toBe(62_500);
  });
});

describe('an answer', () => {
  const pace: PrefillPace = { prefill_tokens_per_s: 1000, kv_token_bytes: 1024, chunk_tokens: 256 };
  const asked = (tokens: number, answer_tokens = 100) => ({ tokens, answer_tokens });

  test('goes to the emptiest of those that have room and have not refused it, in every case', () => {
    const places = [0, 1, 3];
    const kv = [100, 1000, 5000];
    const all = places.flatMap((a) => kv.flatMap((b) => places.flatMap((c) => kv.map((d) => [a, b, c, d]))));
    for (const [a_places, a_kv, b_places, b_kv] of all as [number, number, number, number][])
      for (const refused_by of [[], ['a'], ['b'], ['a', 'b']])
        for (const tokens of [20, 600, 3000]) {
          const peers = [
            peer('a', { places: a_places, kv_tokens: a_kv }),
            peer('b', { places: b_places, kv_tokens: b_kv }),
          ];
          const decided = decideHandover(asked(tokens), pace, peers, refused_by);
          const left = peers.filter(({ id }) => !refused_by.includes(id));
          const roomy = left.filter((each) => each.places > 0 && each.kv_tokens > tokens);
          const isWorth = tokens / 1000 > handoverPause_s(tokens, pace, peers[0]!) + 0.02;
          const said = JSON.stringify({ peers, refused_by, tokens, decided });
          if (left.length === 0) expect(decided, said).toMatchObject({ do: 'keep', reason: 'no_peer' });
          else if (roomy.length === 0) expect(decided, said).toMatchObject({ do: 'keep', reason: 'no_room' });
          else if (!isWorth) expect(decided, said).toMatchObject({ do: 'keep', reason: 'short' });
          else {
            const most = Math.max(...roomy.map(({ kv_tokens }) => kv_tokens));
            const chosen = roomy.find(({ id }) => decided.do === 'hand_over' && id === decided.peer);
            expect(chosen?.kv_tokens, said).toBe(most);
            const alike = roomy.filter(({ kv_tokens }) => kv_tokens === most);
            expect(chosen?.places, said).toBe(Math.max(...alike.map((each) => each.places)));
          }
        }
  });

  test('does not go where it would be over first, nor over a way that takes longer than the prompt', () => {
    expect(decideHandover(asked(3000, 3), pace, [peer('a')])).toMatchObject({ reason: 'short' });
    const slow = peer('slow', { bytes_per_s: 1000 });
    const decided = decideHandover(asked(3000), pace, [slow]);
    expect(decided).toMatchObject({ do: 'keep', reason: 'short' });
    expect((decided as { because: string }).because).toMatch(
      /^3000 tokens are computed in 3000 ms, and a handover/,
    );
    // Another one has less room, and a way that is worth it.
    const fast = peer('fast', { kv_tokens: 4000 });
    expect(decideHandover(asked(3000), pace, [slow, fast])).toMatchObject({ do: 'hand_over', peer: 'fast' });
  });

  test('says that nobody is there, and that nobody took it', () => {
    expect(decideHandover(asked(500), pace, [])).toMatchObject({
      because: 'no replica of the decode pool is known',
    });
    expect(decideHandover(asked(500), pace, [peer('a')], ['a'])).toMatchObject({
      because: 'no replica of the decode pool took it',
    });
  });

  test('goes while nobody knows yet how fast prompts are computed', () => {
    const unknown = { ...pace, prefill_tokens_per_s: undefined };
    expect(decideHandover(asked(16), unknown, [peer('a')])).toMatchObject({ do: 'hand_over' });
    expect(decideHandover(asked(15), unknown, [peer('a')])).toMatchObject({ do: 'keep', reason: 'short' });
  });
});

test('the least prompt that is worth it is the first that is handed over', () => {
  for (const pace of paces)
    for (const link of links) {
      const one = peer('a', link);
      const least = leastHandover_tokens(pace, [one], 30_000);
      const goes = (tokens: number): boolean =>
        decideHandover({ tokens, answer_tokens: 100 }, pace, [one]).do === 'hand_over';
      const said = JSON.stringify({ pace, link, least });
      if (least <= 30_000) expect(goes(least), said).toBe(true);
      for (const tokens of lengths)
        if (tokens < least / 1.06) expect(goes(tokens), `${tokens} ${said}`).toBe(false);
    }
  expect(leastHandover_tokens(paces[0]!, [], 30_000)).toBe(30_001);
});
