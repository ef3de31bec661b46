import { expect, it } from 'vitest';
import { FrameNotices } from '../../../agent/node/frame-notices.ts';
import type { WayNews } from '../../../agent/pipeline/ring-messages.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const broken = (ring: string, provider: string, because = 'no such device'): WayNews => {
  const error = new HpcserveError('E_STAGE_FABRIC', { what: `not by ${provider}`, because });
  return { type: 'notice', ring, provider, error: error.toJSON() };
};
const way = (ring: string, provider?: string): WayNews =>
  provider === undefined
    ? { type: 'way', ring, way: 'connection' }
    : { type: 'way', ring, way: `rma (${provider})`, provider };
const wordsOf = ({ all }: FrameNotices): string[] => all.map(({ message }) => message);

it('says once what is the same as before', () => {
  const notices = new FrameNotices();
  expect(notices.take(broken('a', 'cxi'))).toMatchObject({
    changed: true,
    added: { code: 'E_STAGE_FABRIC' },
  });
  expect(notices.take(broken('a', 'cxi'))).toEqual({ changed: false });
  expect(notices.take(broken('a', 'cxi', 'another reason')).added?.because).toEqual(['another reason']);
  expect(notices.all.length).toBe(1);
});

it('keeps a notice of a ring until its provider works there, or the ring comes up anew', () => {
  const notices = new FrameNotices();
  for (const ring of ['a', 'b']) for (const provider of ['cxi', 'tcp']) notices.take(broken(ring, provider));
  expect(notices.take(way('a', 'tcp'))).toEqual({ changed: true });
  expect(wordsOf(notices)).toEqual(['not by cxi', 'not by cxi', 'not by tcp']);
  expect(notices.take(way('b'))).toEqual({ changed: true });
  expect(wordsOf(notices)).toEqual(['not by cxi']);
  // Nothing is known of these.
  for (const news of [way('b'), way('c'), way('c', 'tcp')])
    expect(notices.take(news)).toEqual({ changed: false });
  notices.clear();
  expect(notices.all).toEqual([]);
});
