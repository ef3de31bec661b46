import { afterEach, expect, it } from 'vitest';
import { parseSince } from '../../cli/parse-since.ts';
import { momentOf_ms } from '../../spec/moment.ts';

const { TZ } = process.env;
afterEach(() => {
  if (TZ === undefined) delete process.env.TZ;
  else process.env.TZ = TZ;
});

it('reads a time without an offset as one of UTC, whatever the machine’s own zone', () => {
  process.env.TZ = 'Europe/Zurich';
  const midnight = Date.UTC(2026, 10, 1);
  for (const text of ['2026-11-01', '2026-11-01T00:00', '2026-11-01 00:00:00', '2026-11-01T01:00+01:00'])
    expect([text, momentOf_ms(text), parseSince(text, 0)]).toEqual([text, midnight, midnight]);
  expect(momentOf_ms('2026-11-01T00:00:00.250Z')).toBe(midnight + 250);
});

it('takes no day that no month has, and nothing behind a day', () => {
  for (const text of [
    '2026-02-29',
    '2026-02-31',
    '2026-04-31',
    '2026-13-01',
    '2026-11-01T25:00',
    '2026-11-01x',
  ])
    expect([text, momentOf_ms(text)]).toEqual([text, undefined]);
  expect(momentOf_ms('2028-02-29')).toBe(Date.UTC(2028, 1, 29));
  expect(() => parseSince('2026-02-31', 0)).toThrow(/time span/);
});
