/** What an engine has loaded, as its log tells it: whatever else stands in that. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Child } from '../../../agent/node/child.ts';
import { EngineProgress, type PhaseProgress } from '../../../agent/node/engine-progress.ts';
import { OrphanGuard } from '../../../agent/node/orphan-guard.ts';
import { fixtureUnit } from '../support.ts';

test('a log that is no UTF-8 hides no phase', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-progress-'));
  const guard = new OrphanGuard(join(folder, 'run'));
  const over = new AbortController();
  const phases: PhaseProgress['phase'][] = [];
  // A banner in Latin 1: as text each of its bytes becomes three. What matters is shorter, and comes a look later.
  const banner = "head -c 4000 /dev/zero | tr '\\0' '\\351'; echo";
  const words = 'Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]';
  const script = `${banner}; sleep 2; echo '${words}'; sleep 600`;
  const child = new Child({
    argv: ['sh', '-c', script],
    env: { PATH: process.env.PATH },
    log_file: join(folder, 'log'),
    guard,
  });
  try {
    const progress = new EngineProgress(
      child,
      fixtureUnit('m'),
      'vllm',
      ({ phase }) => void phases.push(phase),
    );
    const followed = progress.follow(over.signal);
    await expect.poll(() => phases, { timeout: 30_000 }).toContain('weights');
    over.abort();
    await followed;
  } finally {
    expect(await child.stop(1000)).toBe(true);
    guard.close();
    rmSync(folder, { recursive: true, force: true });
  }
}, 60_000);
