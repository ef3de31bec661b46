/** Everything of ours that speaks to a gateway, with TLS on: as people type it. */
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Home, temporaryHome } from './support.ts';

let home: Home;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(async () => {
  await home.run(['stop', '--gateway']);
  home.dispose();
});

const site = (gateway: object): void =>
  writeFileSync(join(home.folder, 'site.yaml'), JSON.stringify({ name: 'own', kind: 'local', gateway }));

it('commands work over TLS with the site’s own authority, and say what clients need', async () => {
  site({ tls: { self_signed: true }, socket: '~/run/gw.sock' });
  const env = { HPCSERVE_SITE: 'site.yaml' };
  const hpcserve = async (...argv: string[]): Promise<{ stdout: string; stderr: string }> => {
    const done = await home.run(argv, { env });
    expect([argv.join(' '), done.code, done.stderr]).toEqual([argv.join(' '), 0, done.stderr]);
    return done;
  };
  const started = await hpcserve('gateway', 'start');
  const ca = join(home.folder, '.hpcserve/own/tls/ca.pem');
  expect(started.stdout).toMatch(/^https:\/\/127\.0\.0\.1:\d+\/v1$/m);
  expect(started.stderr).toContain(`--cacert ${ca}`);
  expect(started.stderr).toContain(`--unix-socket ${join(home.folder, 'run/gw.sock')}`);
  expect(existsSync(join(home.folder, 'run/gw.sock'))).toBe(true);
  expect(statSync(join(home.folder, '.hpcserve/own/tls/ca.key')).mode & 0o777).toBe(0o600);
  const made = JSON.parse((await hpcserve('keys', 'create', 'someone', '--json')).stdout) as { key: string };
  expect((await hpcserve('gateway', 'list')).stdout).toMatch(/1 +running +https:/);
  expect((await hpcserve('keys', 'list')).stdout).toContain('someone');
  expect((await hpcserve('status')).stdout).toMatch(/running at https:/);
  const withKey = { ...env, HPCSERVE_API_KEY: made.key };
  const endpoint = await home.run(['endpoint', '--json'], { env: withKey });
  expect(JSON.parse(endpoint.stdout)).toMatchObject({ ca_file: ca, ca: readFileSync(ca, 'utf8') });
  const variables = await home.run(['endpoint', '--env'], { env: withKey });
  expect(variables.stdout).toContain(`export NODE_EXTRA_CA_CERTS='${ca}'`);
  expect((await home.run(['models', '--json'], { env: withKey })).code).toBe(0);
  expect((await home.run(['nodes', '--json'], { env: withKey })).code).toBe(0);
  const chat = await home.run(['chat', 'nobody', 'hello'], { env: withKey });
  expect(chat.stderr).toContain('the gateway answered 404 to /v1/chat/completions');
  const second = await hpcserve('gateway', 'start');
  expect(second.stderr).toContain('gw.sock-2');
  const doctor = await home.run(['doctor', '--json'], { env });
  const { checks } = JSON.parse(doctor.stdout) as { checks: { check: string; status: string }[] };
  expect(
    checks.filter(({ check }) => /^(gateway|mesh)/.test(check)).map(({ status }) => status),
  ).not.toContain('FAILED');
}, 120_000);

it('a gateway on the network without TLS is warned of, with the setting that mends it', async () => {
  site({ host: '0.0.0.0' });
  const env = { HPCSERVE_SITE: 'site.yaml' };
  const started = await home.run(['gateway', 'start'], { env });
  expect(started.code, started.stderr).toBe(0);
  expect(started.stderr).toMatch(
    /without TLS, so keys and prompts cross the network in clear.*self_signed: true/,
  );
  const { checks } = JSON.parse((await home.run(['doctor', '--json'], { env })).stdout) as {
    checks: { check: string; status: string; found: string; mend: string }[];
  };
  expect(checks.find(({ check }) => check === 'gateway: encryption')).toMatchObject({
    status: 'WARNING',
    mend: expect.stringContaining('self_signed: true'),
  });
}, 60_000);

it('a site says where a certificate is, or that it has an authority of its own, and not half of either', async () => {
  for (const tls of [{}, { certificate_file: '/c.pem' }, { self_signed: true, key_file: '/k.pem' }]) {
    site({ tls });
    const { code, stderr } = await home.run(['gateway', 'list'], { env: { HPCSERVE_SITE: 'site.yaml' } });
    expect(code).not.toBe(0);
    expect(stderr).toContain('give either self_signed: true, or certificate_file and key_file');
  }
}, 60_000);
