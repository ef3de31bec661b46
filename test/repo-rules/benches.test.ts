import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { benches } from '../../bench/list.ts';

const page = readFileSync(fileURLToPath(new URL('../../bench/README.md', import.meta.url)), 'utf8');

describe('bench/README.md', () => {
  it('names every bench, and no other', () => {
    const named = [...page.matchAll(/^\| `([a-z-]+)` \|/gm)].map((match) => match[1]!);
    expect(named.sort()).toEqual(Object.keys(benches).sort());
    expect(named.length).toBeGreaterThan(0);
  });
});
