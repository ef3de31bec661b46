import { expect, it } from 'vitest';
import { ownMemoryOf } from '../../host/process-tree.ts';

it('counts the memory that processes have for themselves, and nothing of those that ended', () => {
  const before = ownMemoryOf([process.pid]);
  const written = Buffer.alloc(64 * 2 ** 20, 1);
  const after = ownMemoryOf([process.pid, 2 ** 22 + 1]);
  expect(after - before).toBeGreaterThan(0.8 * written.length);
  expect(after).toBeLessThanOrEqual(process.memoryUsage().rss);
});
