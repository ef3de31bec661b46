/** Clients that come by HTTPS or by a unix socket: OpenAI's own, curl and undici, beside a real gateway. */
import { execFile, execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { promisify } from 'node:util';
import { pino } from 'pino';
import { Agent, fetch as fetchBy } from 'undici';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { GatewayAdmin, listModels } from '../../control/gateway/admin.ts';
import { type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import { packageRoot } from '../../host/package-root.ts';
import { RendezvousRegistry, SiteAuthority } from '../../mesh/index.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import { chatAnswer, json, TestSession, testConfig, until } from './support.ts';

const run = promisify(execFile);
let folder: string;
let registry: RendezvousRegistry;
let gateway: RunningGateway | undefined;
let session: TestSession;
const logged: string[] = [];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-tls-'));
  registry = await RendezvousRegistry.open(join(folder, 'mesh'), { create: true, poll_ms: 50 });
  session = await TestSession.start(registry, json(chatAnswer));
});
afterEach(async () => {
  await gateway?.close();
  gateway = undefined;
  await session.kill();
  await registry.close();
  rmSync(folder, { recursive: true, force: true });
});

async function start(change: Partial<GatewayConfig>): Promise<{ url: string; key: string }> {
  gateway = await startGateway(testConfig(folder, change), {
    log: pino({ level: 'debug' }, { write: (line: string) => void logged.push(line) }),
    times: { poll_ms: 50, drain_ms: 2000, keys_ms: 50, limits_ms: 50 },
  });
  const { endpoint, admin_token } = gateway;
  const { key } = await new GatewayAdmin(endpoint, admin_token).createKey('tester');
  const models = async (): Promise<string[]> =>
    (await listModels({ ...endpoint, url: `${endpoint.url}/v1` }, key)).map(({ id }) => id);
  await until(async () => (await models()).includes('tiny'), 'the model');
  return { url: `${endpoint.url}/v1`, key };
}

const selfSigned = (): GatewayConfig['tls'] => ({
  authority_folder: join(folder, 'tls'),
  names: ['gw.test'],
});

it('OpenAI’s client asks by HTTPS with the CA of the site, and not without it', async () => {
  const { url, key } = await start({ tls: selfSigned() });
  expect(url).toMatch(/^https:/);
  const { ca_file } = gateway!.endpoint;
  expect(ca_file).toBe(join(folder, 'tls/ca.pem'));
  expect(statSync(join(folder, 'tls/ca.key')).mode & 0o777).toBe(0o600);
  expect(readFileSync(ca_file!, 'utf8')).not.toContain('PRIVATE');
  const script = `
    import OpenAI from 'openai';
    const client = new OpenAI({ baseURL: process.argv[1], apiKey: process.argv[2], maxRetries: 0 });
    const answer = await client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content: 'hi' }] })
      .catch((error) => ({ failed: error.cause?.cause?.code ?? error.cause?.code ?? String(error) }));
    console.log(JSON.stringify(answer.failed ?? answer.choices[0].message.content));`;
  const ask = async (env: Record<string, string>): Promise<string> =>
    (
      await run(process.execPath, ['--input-type=module', '-e', script, url, key], {
        cwd: packageRoot,
        env: { PATH: process.env.PATH, ...env },
      })
    ).stdout.trim();
  expect(await ask({ NODE_EXTRA_CA_CERTS: ca_file! })).toBe(
    JSON.stringify(chatAnswer.choices[0]!.message.content),
  );
  expect(await ask({})).toMatch(/SELF_SIGNED|UNABLE_TO_(GET|VERIFY)/);
  const { stdout } = await run('curl', [
    ...['-sS', '--cacert', ca_file!, '--resolve', `gw.test:${gateway!.endpoint.port}:127.0.0.1`],
    ...['-H', `authorization: Bearer ${key}`, `https://gw.test:${gateway!.endpoint.port}/v1/models`],
  ]);
  expect(stdout).toContain('tiny');
  // Strict X.509, as newer Pythons have it.
  execFileSync('openssl', [
    'verify',
    '-x509_strict',
    '-CAfile',
    ca_file!,
    gateway!.endpoint.certificate_file!,
  ]);
}, 60_000);

it('commands trust exactly the certificate of the gateway, and send nothing to another', async () => {
  const { key } = await start({ tls: selfSigned() });
  const { endpoint } = gateway!;
  // Of the same authority, and for the same names: still another.
  const authority = await SiteAuthority.open(join(folder, 'tls'));
  const other = await authority.issue(['127.0.0.1']);
  const file = join(folder, 'other.pem');
  writeFileSync(file, other.certificate);
  const asked = listModels({ url: `${endpoint.url}/v1`, certificate_file: file }, key);
  await expect(asked).rejects.toMatchObject({
    code: 'E_GATEWAY_UNREACHABLE',
    because: [expect.stringMatching(/another certificate is shown/)],
  });
});

it('gateways of a site have one authority, however many make it at once', async () => {
  const authorities = await Promise.all([1, 2, 3, 4].map(() => SiteAuthority.open(join(folder, 'tls'))));
  const ca = new X509Certificate(readFileSync(authorities[0]!.ca_file));
  for (const authority of authorities) {
    const { certificate } = await authority.issue(['localhost', '10.1.2.3']);
    const issued = new X509Certificate(certificate);
    expect(issued.verify(ca.publicKey)).toBe(true);
    expect(issued.checkHost('localhost')).toBe('localhost');
    expect(issued.checkIP('10.1.2.3')).toBe('10.1.2.3');
    expect(issued.checkHost('elsewhere')).toBeUndefined();
  }
});

it('a certificate that changes on disk is shown without a restart; one that cannot be used is not', async () => {
  const authority = await SiteAuthority.open(join(folder, 'tls'));
  const certificate_file = join(folder, 'cert.pem');
  const key_file = join(folder, 'key.pem');
  const write = async (): Promise<string> => {
    const issued = await authority.issue(['127.0.0.1']);
    writeFileSync(certificate_file, issued.certificate);
    writeFileSync(key_file, issued.key, { mode: 0o600 });
    return new X509Certificate(issued.certificate).fingerprint256;
  };
  const first = await write();
  const { url, key } = await start({ tls: { certificate_file, key_file, ca_file: authority.ca_file } });
  expect(await shown(url)).toBe(first);
  // Of another key than the file beside it: as seen between two writes.
  const { certificate } = await authority.issue(['127.0.0.1']);
  writeFileSync(certificate_file, certificate);
  await until(() => logged.some((line) => line.includes('the old one stays')), 'the warning', 20_000);
  expect(await shown(url)).toBe(first);
  const second = await write();
  await until(async () => (await shown(url)) === second, 'the second certificate', 20_000);
  // Commands compare with what is shown now.
  expect((await listModels({ ...gateway!.endpoint, url }, key)).map(({ id }) => id)).toEqual(['tiny']);
}, 60_000);

function shown(url: string): Promise<string> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const socket = connect({ host: hostname, port: Number(port), rejectUnauthorized: false }, () => {
      resolve(socket.getPeerX509Certificate()!.fingerprint256);
      socket.destroy();
    });
    socket.once('error', reject);
  });
}

it('clients of the same host come by a unix socket, which nobody else can enter', async () => {
  const socket = join(folder, 'run/gateway.sock');
  const { key } = await start({ socket, tls: selfSigned() });
  expect(gateway!.endpoint.socket).toBe(socket);
  expect(statSync(join(folder, 'run')).mode & 0o777).toBe(0o700);
  expect(statSync(socket).mode & 0o777).toBe(0o600);
  const headers = { authorization: `Bearer ${key}` };
  const dispatcher = new Agent({ connect: { socketPath: socket } });
  const answer = await fetchBy('http://localhost/v1/chat/completions', {
    method: 'POST',
    dispatcher,
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'tiny', messages: [] }),
  });
  expect([answer.status, await answer.json()]).toEqual([200, chatAnswer]);
  await dispatcher.close();
  const { stdout } = await run('curl', [
    ...['-sS', '--unix-socket', socket, '-H', `authorization: Bearer ${key}`],
    'http://localhost/v1/models',
  ]);
  expect(stdout).toContain('tiny');
  const keyless = await run('curl', ['-sS', '--unix-socket', socket, 'http://localhost/v1/models']);
  expect(keyless.stdout).toContain('carries no API key');
  await gateway!.close();
  expect(statSync(socket, { throwIfNoEntry: false })).toBeUndefined();
});

it('a unix socket that others could reach is refused, as is one whose path is too long', async () => {
  mkdirSync(join(folder, 'open'), { mode: 0o755 });
  chmodSync(join(folder, 'open'), 0o755);
  const inOpen = start({ socket: join(folder, 'open/gateway.sock') });
  await expect(inOpen).rejects.toMatchObject({
    code: 'E_GATEWAY_PORT',
    because: [expect.stringMatching(/others must not enter it/)],
  });
  const long = start({ socket: join(folder, 'x'.repeat(90), 'gateway.sock') });
  await expect(long).rejects.toMatchObject({
    code: 'E_GATEWAY_PORT',
    because: [expect.stringMatching(/at most 100/)],
  });
});
