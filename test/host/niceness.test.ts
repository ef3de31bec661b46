/** Threads that give way, in processes that are niced already and may not take that back. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const code = `
  const { giveWay } = await import(${JSON.stringify(join(packageRoot, 'dist/host/niceness.js'))});
  giveWay(5);
  process.stdout.write(String((await import('node:os')).getPriority(0)));
`;
// As an ordinary user, where the test is root: root may do anything.
const ordinary = process.getuid?.() === 0 ? ['setpriv', '--reuid=65534', '--clear-groups'] : [];

it.each([
  [0, '5'],
  [9, '9'],
])('a process of niceness %i', (niceness, expected) => {
  const own = Number(spawnSync('nice', { encoding: 'utf8' }).stdout);
  const [program = '', ...args] = [
    ...['nice', `--adjustment=${Math.max(0, niceness - own)}`, ...ordinary],
    ...[process.execPath, '--input-type=module', '-e', code],
  ];
  const { stdout, stderr } = spawnSync(program, args, { encoding: 'utf8' });
  expect(stderr).toBe('');
  expect(Number(stdout)).toBe(Math.max(Number(expected), own));
});
