/** Downloads behind a site's proxy, by the built program: the proxy is a matter of its environment. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { type AddressInfo, connect, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { SiteAuthority } from '../../../mesh/site-authority.ts';
import { HubServer } from './hub-server.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-proxy-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const content = Buffer.from('not a model, but a file');

function pull(url: string, environment: Record<string, string>): Promise<{ code: number; stderr: string }> {
  const args = [join(packageRoot, 'cli/hpcserve.mjs'), 'model', 'pull', url];
  const env = { PATH: process.env.PATH, HOME: folder, HPCSERVE_SITE: 'local', ...environment };
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: folder, env }, (error, _, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stderr });
    });
  });
}

/** Answers CONNECT with each of `statuses` once, then lets everything through. */
async function startProxy(statuses: number[]) {
  const asked: (string | undefined)[] = [];
  const server = createServer();
  server.on('connect', (request, client) => {
    asked.push(request.url);
    client.on('error', () => undefined);
    const status = statuses.shift();
    if (status !== undefined) {
      client.end(`HTTP/1.1 ${status} Refused\r\ncontent-length: 0\r\n\r\n`);
      return;
    }
    const target = new URL(`http://${request.url}`);
    const upstream = connect(Number(target.port), target.hostname, () => {
      client.write('HTTP/1.1 200 Connected\r\n\r\n');
      upstream.pipe(client).pipe(upstream);
    });
    upstream.on('error', () => client.destroy());
  });
  const port = await listen(server);
  return { asked, url: `http://127.0.0.1:${port}`, close: () => server.close() };
}

async function listen(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
}

test('a proxy that is busy is asked again', async () => {
  await using hub = await HubServer.start();
  hub.files.set('/data.bin', { content });
  const proxy = await startProxy([503, 502]);
  try {
    const pulled = await pull(`${hub.origin}/data.bin`, { HTTP_PROXY: proxy.url });
    expect(pulled.stderr).not.toContain('E_');
    expect(pulled.code).toBe(0);
    expect(readFileSync(join(folder, 'data.bin')).equals(content)).toBe(true);
    expect(proxy.asked).toEqual([1, 2, 3].map(() => new URL(hub.origin).host));
  } finally {
    proxy.close();
  }
});

test.each([
  [403, 'NO_PROXY'],
  [407, 'USER:PASSWORD'],
])('a proxy that refuses with %i is named at once', async (status, advice) => {
  await using hub = await HubServer.start();
  hub.files.set('/data.bin', { content });
  const proxy = await startProxy([status]);
  try {
    const refused = await pull(`${hub.origin}/data.bin`, { HTTP_PROXY: proxy.url });
    expect(refused.code).toBe(7);
    expect(refused.stderr).toContain('E_MODEL_PULL_NETWORK');
    expect(refused.stderr).toContain(`it answered ${status}`);
    expect(refused.stderr).toContain(advice);
    expect(proxy.asked.length).toBe(1);
  } finally {
    proxy.close();
  }
});

test('a certificate of an unknown authority says how it is trusted', async () => {
  const authority = await SiteAuthority.open(join(folder, 'tls'));
  const { certificate, key } = await authority.issue(['127.0.0.1']);
  const cert = [certificate, readFileSync(authority.ca_file, 'utf8')].join('\n');
  const server = createTlsServer({ cert, key }, (_, response) => response.end(content));
  const url = `https://127.0.0.1:${await listen(server)}/data.bin`;
  try {
    const refused = await pull(url, {});
    expect(refused.code).toBe(7);
    expect(refused.stderr).toContain('E_MODEL_PULL_NETWORK');
    expect(refused.stderr).toContain('NODE_EXTRA_CA_CERTS');
    expect(await pull(url, { NODE_EXTRA_CA_CERTS: authority.ca_file })).toMatchObject({ code: 0 });
  } finally {
    server.close();
  }
});
