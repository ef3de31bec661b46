import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { commandHelp } from '../../.ci/command-page.ts';

const page = readFileSync(fileURLToPath(new URL('../../docs/commands.md', import.meta.url)), 'utf8');

const commands = await commandHelp();

describe('every command', () => {
  it('is documented, and no other is', () => {
    const documented = [...page.matchAll(/^## (hpcserve .+)$/gm)].map((match) => match[1]!);
    expect(documented).toEqual(commands.map((command) => command.name));
    expect(documented.length).toBeGreaterThan(15);
  });

  it.each(commands)('$name has examples in its help', ({ help }) => {
    expect(help).toMatch(/Examples?:\n\s+\$ hpcserve /);
  });
});
