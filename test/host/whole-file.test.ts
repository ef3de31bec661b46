import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { replaceFile } from '../../gateway/replace-file.ts';

it('writes of one process at the same time do not take each other’s file away', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-replace-test-'));
  try {
    const path = join(folder, 'demand.json');
    const texts = Array.from({ length: 50 }, (_, index) => `${index}`.repeat(1000));
    await Promise.all(texts.map((text) => replaceFile(path, text)));
    expect(texts).toContain(readFileSync(path, 'utf8'));
    expect(readdirSync(folder)).toEqual(['demand.json']);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
