/** What an agent takes for its launch, and what it refuses by name. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readLaunchFile } from '../../../agent/node/launch-file.ts';
import { unitOf } from '../support.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-launch-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function read(weights: 'resident' | 'streamed' | 'auto') {
  const path = join(folder, 'launch.json');
  const launch = {
    format: 1,
    launch_id: '0'.repeat(16),
    deployment: 'demo',
    site: 'here',
    provider: 'someone@here',
    tier: 'stable',
    node_kind: 'cpu',
    node_count: 1,
    units: [unitOf({ name: 'm', weights })],
    mesh_folder: '/mesh',
    launch_folder: folder,
  };
  writeFileSync(path, JSON.stringify(launch));
  return readLaunchFile(path);
}

it('is read where each unit says where its weights lie, and refused where one leaves it open', () => {
  expect(read('streamed').units[0]!.model.weights).toBe('streamed');
  expect(read('resident').units[0]!.model.weights).toBe('resident');
  expect(() => read('auto')).toThrow(
    expect.objectContaining({
      code: 'E_AGENT_LAUNCH',
      because: [expect.stringMatching(/^units\.0\.model\.weights: .*auto/)],
    }),
  );
});
