import { chmodSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { copyPrivately } from '../../host/copy-privately.ts';
import { scratchFolder } from '../mesh/support.ts';

it('makes a copy, or renews one, that its owner alone reads', async () => {
  await using scratch = await scratchFolder();
  const [from, to] = [join(scratch.path, 'model.yaml'), join(scratch.path, 'copy.yaml')];
  writeFileSync(from, 'name: one');
  chmodSync(from, 0o644);
  copyPrivately(from, to);
  expect([readFileSync(to, 'utf8'), statSync(to).mode & 0o777]).toEqual(['name: one', 0o600]);
  writeFileSync(from, 'name: two');
  chmodSync(to, 0o644);
  copyPrivately(from, to);
  expect([readFileSync(to, 'utf8'), statSync(to).mode & 0o777]).toEqual(['name: two', 0o600]);
});
