import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { MissingNeed } from '../../../bench/need.ts';
import { buildOpenTela } from '../../../bench/routers/opentela.ts';
import { readRoutersOptions } from '../../../bench/routers/options.ts';

it('OpenTela is measured where somebody has a checkout of it, and the option comes first', () => {
  expect(readRoutersOptions([], {})).not.toHaveProperty('opentela');
  expect(readRoutersOptions([], { HPCSERVE_OPENTELA: '/there' })).toMatchObject({ opentela: '/there' });
  expect(readRoutersOptions(['--opentela', '/here'], { HPCSERVE_OPENTELA: '/there' })).toMatchObject({
    opentela: '/here',
  });
});

it('a folder that is no checkout of it is refused before anything is measured', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-opentela-test-'));
  try {
    expect(() => buildOpenTela(folder, folder, () => undefined)).toThrow(MissingNeed);
    expect(() => buildOpenTela(folder, folder, () => undefined)).toThrow('is no checkout of it');
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
