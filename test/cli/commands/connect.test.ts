/** `hpcserve connect`: the gateway of a site over ssh on a port here, and how it ends. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { openRemoteSite, type RemoteSite } from '../remote-site.ts';

let site: RemoteSite;
beforeAll(async () => {
  site = await openRemoteSite();
});
afterAll(async () => {
  await site?.there.run(['stop', '--gateway', '--site', site.site_file]);
  await site?.dispose();
});

it('ends with the exit code of the site where it has no gateway', async () => {
  const { code, stdout, stderr } = await site.laptop.run(['connect', '--site', site.site_file]);
  expect({ code, stdout }, stderr).toEqual({ code: 7, stdout: '' });
  expect(stderr).toContain('E_GATEWAY_UNREACHABLE');
});

it('takes no port that is none', async () => {
  const argv = ['connect', '--site', site.site_file, '--port', 'abc'];
  const { code, stdout, stderr } = await site.laptop.run(argv);
  expect({ code, stdout }, stderr).toEqual({ code: 2, stdout: '' });
  expect(stderr).toContain('it takes a port [E_USAGE]');
});

it('brings the gateway to a port here, and ends where the port is taken or it is let in no more', async () => {
  const place = ['--site', site.site_file];
  for (const argv of [
    ['gateway', 'start'],
    ['keys', 'create', 'me', '--save'],
  ]) {
    const { code, stderr } = await site.there.run([...argv, ...place]);
    expect(code, stderr).toBe(0);
  }
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const { port } = other.address() as { port: number };
  const refused = await site.laptop.run(['connect', ...place, '--port', String(port)]);
  await new Promise((resolve) => other.close(resolve));
  expect({ code: refused.code, stdout: refused.stdout }, refused.stderr).toEqual({ code: 2, stdout: '' });
  expect(refused.stderr).toContain(`error: port ${port} of this machine cannot be had [E_USAGE]`);

  const argv = [join(packageRoot, 'cli/hpcserve.mjs'), 'connect', ...place, '--port', String(port), '--json'];
  const child = spawn(process.execPath, argv, {
    cwd: site.laptop.folder,
    env: { PATH: '/nowhere', HOME: site.laptop.folder },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let told = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    told += text;
  });
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  try {
    const line = await new Promise<string>((resolve) =>
      createInterface(child.stdout)
        .once('line', resolve)
        .once('close', () => resolve('{}')),
    );
    const { url, key } = JSON.parse(line) as { url: string; key: string };
    expect(url, told).toBe(`http://127.0.0.1:${port}/v1`);
    const listed = await fetch(`${url}/models`, { headers: { authorization: `Bearer ${key}` } });
    expect(listed.status).toBe(200);
    writeFileSync(join(site.server.folder, 'authorized_keys'), '');
    site.server.dropConnections();
    await expect.poll(() => told).toContain('E_SSH_AUTHENTICATION');
    expect(await ended, told).toBe(7);
  } finally {
    child.kill('SIGKILL');
  }
});
