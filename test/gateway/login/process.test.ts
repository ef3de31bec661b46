/** From a site config to a sign-in: the gateway as commands start it, and a provider that only the site vouches for. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { startGatewayProcess, stopGatewayProcess } from '../../../control/gateway/process.ts';
import { SiteAuthority } from '../../../mesh/index.ts';
import { gatewaySchema } from '../../../spec/gateway-settings.ts';
import { gatewayFiles, type StateLayout, stateLayout } from '../../../spec/state-layout.ts';
import { site } from '../../control/support.ts';
import { answerOfProvider, OidcProviderProcess } from './oidc-provider.ts';
import { accounts, codeOf, LoginPage } from './support.ts';

const secret = 'a client secret that is in no config';
let folder: string;
let layout: StateLayout;
let authority: SiteAuthority;
let provider: OidcProviderProcess;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-login-process-'));
  layout = stateLayout(folder, 'local');
  authority = await SiteAuthority.open(join(folder, 'authority'));
  const { certificate, key } = await authority.issue(['127.0.0.1']);
  const files = [join(folder, 'provider.pem'), join(folder, 'provider.key')] as const;
  writeFileSync(files[0], certificate);
  writeFileSync(files[1], key, { mode: 0o600 });
  provider = await OidcProviderProcess.start(files);
});
afterEach(async () => {
  await stopGatewayProcess(layout);
  await provider[Symbol.asyncDispose]();
  delete process.env.HPCSERVE_TEST_SECRETS;
  rmSync(folder, { recursive: true, force: true });
});

function siteWith(login: object): typeof site {
  return { ...site, gateway: gatewaySchema.parse({ login: { client_id: 'hpcserve', ...login } }) };
}

it('people sign in as the site config says, over restarts, and the secret stays in its file', async () => {
  process.env.HPCSERVE_TEST_SECRETS = folder;
  writeFileSync(join(folder, 'oidc.secret'), `${secret}\n`, { mode: 0o600 });
  const configured = siteWith({
    issuer: provider.issuer,
    client_secret_file: '$HPCSERVE_TEST_SECRETS/oidc.secret',
    ca_file: '$HPCSERVE_TEST_SECRETS/authority/ca.pem',
    role_claim: 'groups',
    roles: { operator: ['hpc-admins'] },
  });
  const { url } = await startGatewayProcess(configured, layout);
  await provider.open([`${url}/dashboard/`], { accounts }, secret);
  const page = new LoginPage(url);
  const answer = await answerOfProvider(
    await page.address(),
    'olga',
    readFileSync(authority.ca_file, 'utf8'),
  );
  const got = await page.finish(answer);
  expect(got.status, await got.text()).toBe(200);
  expect(await (await page.ask('/hpcserve/v1/me')).json()).toMatchObject({ role: 'operator', user: 'olga' });
  for (const name of [gatewayFiles.config, gatewayFiles.log])
    expect([name, readFileSync(join(layout.gateway_folder, name), 'utf8').includes(secret)]).toEqual([
      name,
      false,
    ]);
  await stopGatewayProcess(layout);
  expect((await startGatewayProcess(configured, layout)).url).toBe(url);
  expect((await page.ask('/hpcserve/v1/me')).status).toBe(200);
});

it('a provider for which nobody vouches is not asked', async () => {
  const { url } = await startGatewayProcess(siteWith({ issuer: provider.issuer }), layout);
  await provider.open([`${url}/dashboard/`], { accounts });
  const answer = await new LoginPage(url).begin();
  expect([answer.status, codeOf(answer)]).toEqual([503, 'E_LOGIN_PROVIDER']);
  expect(await answer.text()).toMatch(/certificate/);
});

it('a provider beyond the cluster is asked through the proxy of the environment', async () => {
  const { certificate, key } = await authority.issue(['idp.example.org']);
  const files = [join(folder, 'far.pem'), join(folder, 'far.key')] as const;
  writeFileSync(files[0], certificate);
  writeFileSync(files[1], key, { mode: 0o600 });
  await using far = await OidcProviderProcess.start([...files, 'idp.example.org']);
  await using proxy = await tunnels(far.port);
  const before = process.env.HTTPS_PROXY;
  process.env.HTTPS_PROXY = proxy.url;
  try {
    const configured = siteWith({ issuer: far.issuer, ca_file: authority.ca_file });
    const { url } = await startGatewayProcess(configured, layout);
    await far.open([`${url}/dashboard/`], { accounts });
    const page = new LoginPage(url);
    const ca = readFileSync(authority.ca_file, 'utf8');
    const got = await page.finish(await answerOfProvider(await page.address(), 'alice', ca, proxy.url));
    expect(got.status, await got.text()).toBe(200);
    expect(new Set(proxy.asked)).toEqual(new Set(['idp.example.org:443']));
  } finally {
    if (before === undefined) delete process.env.HTTPS_PROXY;
    else process.env.HTTPS_PROXY = before;
  }
});

/** A proxy as sites have them, behind which everything is at one port of this machine. */
async function tunnels(port: number): Promise<AsyncDisposable & { url: string; asked: string[] }> {
  const asked: string[] = [];
  const open = new Set<Duplex>();
  const server = createServer((_request, response) => response.writeHead(405).end());
  server.on('connect', (request, client) => {
    asked.push(request.url!);
    const there = connect(port, '127.0.0.1', () => {
      client.write('HTTP/1.1 200 Connection established\r\n\r\n');
      there.pipe(client).pipe(there);
    });
    for (const [one, other] of [
      [client, there],
      [there, client],
    ] as const) {
      open.add(one);
      one.on('error', () => other.destroy()).on('close', () => other.destroy());
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port: own } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${own}`,
    asked,
    [Symbol.asyncDispose]: async () => {
      for (const one of open) one.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
