import { expect, it } from 'vitest';
import { ServiceTimes } from '../../../gateway/routing/service-times.ts';
import { durationsTaken } from '../../../solver/routing/service-time.ts';

const answer_s = 0.5;
const places = 4;

/** When requests that come at once end, at a replica whose places come free one after the other. */
function ends_s(requests: number): number[] {
  const free_s = Array.from({ length: places }, (_, place) => ((place + 1) * answer_s) / places);
  return Array.from({ length: requests }, () => {
    const place = free_s.indexOf(Math.min(...free_s));
    free_s[place]! += answer_s;
    return free_s[place]!;
  });
}

it('how long a replica works for an answer does not grow with who waits there', () => {
  for (const [waiting, end_s] of ends_s(100).entries())
    expect(end_s / durationsTaken(places + waiting, places)).toBeCloseTo(answer_s, 9);
  for (let ahead = 0; ahead < places; ahead++) expect(durationsTaken(ahead, places)).toBe(1);
});

it('are means of what replicas worked, not of what clients waited', () => {
  const times = new ServiceTimes();
  const answer = { duration_ms: 9000, stream: true, ttft_ms: 8000, completion_tokens: 11 };
  times.answered('m', answer, { duration_ms: 1500, is_estimate: true, ttft_ms: undefined });
  expect(times.measured('m')).toEqual({ duration_s: 1.5, tpot_s: 0.1 });
  times.answered('m', answer, { duration_ms: 100, is_estimate: true, ttft_ms: undefined });
  expect(times.measured('m')!.duration_s).toBe(1.5);
  times.answered('m', answer, { duration_ms: 2500, is_estimate: false, ttft_ms: 200 });
  expect(times.measured('m')!.duration_s).toBeCloseTo(1.6, 9);
  expect(times.measured('m')!.ttft_s).toBe(0.2);
  // Clients waited all the same.
  expect(times.clientTtft_s('m')).toBe(8);
  times.answered('other', answer, undefined);
  expect(times.measured('other')).toBeUndefined();
  expect(times.clientTtft_s('other')).toBe(8);
});
