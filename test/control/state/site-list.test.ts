import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { listSites } from '../../../control/state/site-list.ts';

it('site configs are known by name, whichever way the end of their files is written', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-sites-'));
  try {
    mkdirSync(join(folder, 'sites'));
    for (const file of ['a.yaml', 'b.yml', '.c.yml', 'd.yaml.bak', 'e.ml'])
      writeFileSync(join(folder, 'sites', file), '');
    const places = {
      user_folder: folder,
      site_wide_folder: '/nowhere',
      working_folder: folder,
      environment: {},
    };
    const yours = listSites(places).filter(({ origin }) => origin === 'yours');
    expect(yours.map(({ name, path }) => [name, path])).toEqual([
      ['a', join(folder, 'sites/a.yaml')],
      ['b', join(folder, 'sites/b.yml')],
    ]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
