import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { writtenPages } from '../../.ci/pages.ts';

describe('pages written from the code', () => {
  it.each(Object.entries(writtenPages))(
    '%s is what the code says (node dist/.ci/write-pages.js)',
    async (path, text) => {
      expect(readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8')).toBe(
        await text(),
      );
    },
  );
});
