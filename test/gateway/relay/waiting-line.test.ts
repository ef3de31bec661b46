/** Who goes when places become free: in the order of coming, each once. */
import { expect, it } from 'vitest';
import { WaitingLine } from '../../../gateway/relay/waiting-line.ts';

it('gives places to those who came first, and looks no more for who has one', async () => {
  const line = new WaitingLine();
  let places = 0;
  const looks = [0, 0, 0];
  const went: number[] = [];
  const waiting = looks.map(async (_, index) => {
    await line.until(() => {
      looks[index]!++;
      return places > 0 ? places-- : undefined;
    }, false);
    went.push(index);
  });
  await expect.poll(() => Math.min(...looks)).toBeGreaterThan(0);
  expect(went).toEqual([]);
  places = 2;
  line.wake();
  await Promise.all(waiting.slice(0, 2));
  expect(went).toEqual([0, 1]);
  const done = looks.slice(0, 2);
  const before = looks[2]!;
  await expect.poll(() => looks[2]!).toBeGreaterThan(before + 2);
  expect(looks.slice(0, 2)).toEqual(done);
  places = 1;
  await Promise.all(waiting);
  expect(went).toEqual([0, 1, 2]);
  expect(places).toBe(0);
});

it('ends the wait of one whose look throws, and of nobody else', async () => {
  const line = new WaitingLine();
  const refused = line.until<number>(() => {
    throw new Error('gone');
  }, false);
  let open = false;
  const other = line.until(() => (open ? 'in' : undefined), false);
  await expect(refused).rejects.toThrow('gone');
  open = true;
  line.wake();
  await expect(other).resolves.toBe('in');
});

it('lets one in at once whom nobody waits before', async () => {
  expect(await new WaitingLine().until(() => 'in', true)).toBe('in');
});
