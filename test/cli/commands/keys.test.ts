/** A key is shown once: whatever goes wrong behind it, it was shown. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Home, temporaryHome } from '../support.ts';

let home: Home;
let credentials: string;
beforeAll(async () => {
  home = temporaryHome();
  credentials = join(home.folder, '.config/hpcserve/credentials.json');
  const started = await home.run(['gateway', 'start']);
  expect(started.code, started.stderr).toBe(0);
});
afterAll(async () => {
  await home.run(['gateway', 'stop', '1']);
  home.dispose();
});

it('keeps the key that it shows', async () => {
  const { code, stdout, stderr } = await home.run(['keys', 'create', 'me', '--save']);
  expect(code, stderr).toBe(0);
  expect(JSON.parse(readFileSync(credentials, 'utf8'))).toMatchObject({ gateways: [{ key: stdout.trim() }] });
});

it.each([
  ['as a line', [], (stdout: string) => stdout.trim()],
  ['as JSON', ['--json'], (stdout: string) => (JSON.parse(stdout) as { key: string }).key],
])('shows the key %s where it cannot be kept, and fails', async (_how, options, keyOf) => {
  mkdirSync(join(home.folder, '.config/hpcserve'), { recursive: true });
  writeFileSync(credentials, 'not what it should be', { mode: 0o600 });
  const { code, stdout, stderr } = await home.run(['keys', 'create', 'me', '--save', ...options]);
  expect(code, stderr).toBe(9);
  expect(stderr).toContain('E_CREDENTIALS');
  rmSync(credentials);
  const asked = await home.run(['models', '--json'], { env: { HPCSERVE_API_KEY: keyOf(stdout) } });
  // The key is one that the gateway knows.
  expect(asked.code, asked.stderr).toBe(0);
});
