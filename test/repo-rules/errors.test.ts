import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { productRooms } from '../../.ci/dependency-rules.ts';
import { exitCodes } from '../../spec/errors/exit-codes.ts';
import { errorRegistry } from '../../spec/errors/registry.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const page = readFileSync(`${root}/docs/errors.md`, 'utf8');

describe('the error registry and docs/errors.md', () => {
  const documented = new Map(
    [...page.matchAll(/^### `(E_[A-Z0-9_]+)`\n([\s\S]*?)(?=^###? |$(?![\s\S]))/gm)].map((match) => [
      match[1]!,
      match[2]!,
    ]),
  );

  it('name the same codes', () => {
    expect(Object.keys(errorRegistry).length).toBeGreaterThan(20);
    expect([...documented.keys()].sort()).toEqual(Object.keys(errorRegistry).sort());
  });

  it.each(Object.entries(errorRegistry))('%s is described as it is', (code, entry) => {
    const text = documented.get(code)!;
    expect(text).toContain(entry.cause);
    expect(text).toContain(entry.fix);
    expect(text).toContain(`HTTP ${entry.http_status}`);
    expect(text).toContain(`exit code ${entry.exit_code}`);
    expect(Object.keys(exitCodes)).toContain(String(entry.exit_code));
  });

  it('document every exit code', () => {
    for (const [code, meaning] of Object.entries(exitCodes))
      expect(page).toContain(`| ${code} | ${meaning} |`);
  });

  it('hold no code that nothing throws', () => {
    const sources = productRooms
      .filter((room) => existsSync(`${root}/${room}`))
      .flatMap((room) =>
        readdirSync(`${root}/${room}`, { recursive: true, withFileTypes: true })
          .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
          .map((entry) => `${entry.parentPath}/${entry.name}`),
      )
      .filter((path) => !path.includes('/spec/errors/') || path.endsWith('/error.ts'))
      .map((path) => readFileSync(path, 'utf8'))
      .join('\n');
    const used = (code: string): boolean =>
      sources.includes(`'${code}'`) || sources.includes(`errorRegistry.${code}`);
    expect(Object.keys(errorRegistry).filter((code) => !used(code))).toEqual([]);
  });
});
