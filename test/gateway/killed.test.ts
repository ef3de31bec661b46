/** The second half of the bench `ledger` at a small size: gateways as hpcserve starts them, killed under load. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { killUnderLoad } from '../../bench/ledger/killed-gateway.ts';

it('what clients were answered is in the ledger once, however often the gateway is killed', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-killed-test-'));
  const log: string[] = [];
  try {
    const outcome = await killUnderLoad(folder, 5, (line) => void log.push(line));
    expect(outcome.answered).toBeGreaterThan(5 * 16);
    expect(outcome, log.join('\n')).toMatchObject({ kills: 5, missing: [], twice: [] });
    expect(outcome.rows).toBeGreaterThanOrEqual(outcome.answered);
    expect(outcome.summed).toBe(outcome.rows);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}, 300_000);
