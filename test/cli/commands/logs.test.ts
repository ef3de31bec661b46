/** What `hpcserve logs` follows, as it is written. */
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { gatewayFiles } from '../../../spec/state-layout.ts';
import { type Home, temporaryHome } from '../support.ts';

let home: Home;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(() => home.dispose());

it.each([
  ['a progress bar that is drawn for ever', '\r 50 % ━━━━━'],
  ['a line that does not end, whose characters take several bytes', '━'],
])(
  'goes on behind %s',
  async (_what, drawn) => {
    const folder = join(home.folder, '.hpcserve/local/gateway');
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const log = join(folder, gatewayFiles.log);
    writeFileSync(log, 'it begins\n');
    const following = spawn(
      process.execPath,
      [join(packageRoot, 'cli/hpcserve.mjs'), 'logs', '--gateway', '--follow', '--json'],
      { cwd: home.folder, env: { PATH: '/nowhere', HOME: home.folder } },
    );
    const ended = new Promise((resolve) => following.once('close', resolve));
    try {
      let shown = '';
      following.stdout.setEncoding('utf8').on('data', (text: string) => {
        shown += text;
      });
      await expect.poll(() => shown).toContain('it begins');
      // More than one look takes in.
      const long = drawn.repeat((1.5 * 1024 ** 2) / Buffer.byteLength(drawn));
      appendFileSync(log, `${long}\nit ends\n`);
      await expect.poll(() => shown).toContain('"it ends"');
      const lines = shown
        .trim()
        .split('\n')
        .map((line) => (JSON.parse(line) as { line: string }).line);
      expect(lines.length).toBe(4);
      expect(lines.slice(1, -1).join('') === long).toBe(true);
    } finally {
      following.kill('SIGINT');
      await ended;
    }
  },
  60_000,
);
