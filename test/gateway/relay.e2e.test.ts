/**
 * Two sites that cannot reach each other, and a gateway in the middle that both can: three hosts with networks of their
 * own, and in them the processes that run there. Between the sites a firewall drops what comes, without a word.
 */
import { type ChildProcess, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Dispatcher, Pool } from 'undici';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import {
  type GatewayConfig,
  type GatewayEndpoint,
  gatewayFiles,
  stateLayout,
} from '../../spec/state-layout.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { lackingForNamespaces, NetworkHost } from '../mesh/namespaces.ts';
import { eventually } from '../mesh/support.ts';

const lacking = lackingForNamespaces();
const engine = fileURLToPath(new URL('gathering-engine.mjs', import.meta.url));
const door = fileURLToPath(new URL('../mesh/door.mjs', import.meta.url));
const mesh_port = 4001;
/** Streams at a time; libp2p's own limits are 32 and 64 a protocol, and 15 members a relay. */
const streams = 250;

describe.skipIf(lacking !== '')(`a relay between sites${lacking && ` [skipped: needs ${lacking}]`}`, () => {
  const [home, between, away] =
    lacking === '' ? [new NetworkHost(), new NetworkHost(), new NetworkHost()] : [];
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-relay-'));
  const network_key = new Uint8Array(32).fill(6);
  let site: Site;
  let agent: RunningAgent;
  let relay: ChildProcess;
  let pool: Pool;
  let admin_token: string;
  let key: string;

  beforeAll(async () => {
    between!.cable(home!, '10.97.1');
    between!.cable(away!, '10.97.2');
    home!.routeThrough('10.97.1.1');
    away!.routeThrough('10.97.2.1');
    relay = (await startGateway(between!, 'between', { bootstrap: [], port: mesh_port })).child;
    const { endpoint } = await startGateway(away!, 'away', {
      bootstrap: [`10.97.2.1:${mesh_port}`],
      port: 0,
    });
    const socket = join(folder, 'door');
    away!.node([door, socket, String(endpoint.port)]);
    await eventually(() => opens(socket), 'the door');
    pool = new Pool('http://gateway', { socketPath: socket, connections: null, pipelining: 1 });
    admin_token = readFileSync(
      join(layoutOf('away').gateway_folder, gatewayFiles.admin_token),
      'utf8',
    ).trim();
    const made = await ask('POST', '/hpcserve/v1/keys', { name: 'tester' }, admin_token);
    key = ((await made.body.json()) as { key: string }).key;
    site = await Site.open(network_key);
    const outside = [`10.97.1.1:${mesh_port}`];
    agent = await site.start(
      [unitOf({ name: 'm', max_sequences: 4 * streams, command: [process.execPath, engine, '{socket}'] })],
      { site: 'home', network: '10.97.1.0/24', mesh: { bootstrap: outside, relay: outside } },
      {},
      home!.prefix,
    );
    await reachable();
  }, 120_000);
  afterAll(async () => {
    await pool?.destroy();
    await site?.[Symbol.asyncDispose]();
    for (const host of [home, between, away]) host?.[Symbol.dispose]();
    rmSync(folder, { recursive: true, force: true });
  });

  const layoutOf = (name: string) => stateLayout(folder, name);

  async function startGateway(
    host: NetworkHost,
    name: string,
    mesh: { bootstrap: string[]; port: number },
  ): Promise<{ child: ChildProcess; endpoint: GatewayEndpoint }> {
    const { mesh_folder, gateway_folder, deployments_folder, keys_folder } = layoutOf(name);
    for (const path of [mesh_folder, gateway_folder]) mkdirSync(path, { recursive: true, mode: 0o700 });
    writeFileSync(join(mesh_folder, 'network.key'), network_key, { mode: 0o600 });
    const config: GatewayConfig = {
      format: 1,
      site: name,
      provider: `tester@${name}`,
      host: '127.0.0.1',
      port: 0,
      mesh_folder,
      gateway_folder,
      deployments_folder,
      keys_folder,
      mesh: { ...mesh, relay: [], host: '0.0.0.0' },
    };
    const file = join(gateway_folder, gatewayFiles.config);
    writeFileSync(file, JSON.stringify(config));
    const child = host.node([join(packageRoot, 'dist/gateway/main.js'), '--config', file]);
    const endpoint = await eventually(
      () => {
        const path = join(gateway_folder, gatewayFiles.endpoint);
        if (!existsSync(path)) return undefined;
        const written = JSON.parse(readFileSync(path, 'utf8')) as GatewayEndpoint;
        return written.pid === child.pid ? written : undefined;
      },
      `the gateway ${name}`,
      40_000,
    );
    return { child, endpoint };
  }

  function ask(
    method: 'GET' | 'POST',
    path: string,
    body: object | undefined,
    as: string,
  ): Promise<Dispatcher.ResponseData> {
    return pool.request({
      method,
      path,
      headers: { authorization: `Bearer ${as}`, 'content-type': 'application/json' },
      ...(body ? { body: JSON.stringify(body) } : {}),
      headersTimeout: 60_000,
      bodyTimeout: 60_000,
    });
  }

  const chat = (content: string): Promise<Dispatcher.ResponseData> =>
    ask(
      'POST',
      '/v1/chat/completions',
      { model: 'm', stream: true, messages: [{ role: 'user', content }] },
      key,
    );

  interface Row {
    session_id: string;
    site: string;
    reachable: boolean;
    lifecycle: string;
    sources: string[];
    load?: object;
  }

  /** The replica at home, as the gateway away sees it once it can ask it. */
  async function reachable(): Promise<Row> {
    return await eventually(
      async () => {
        const answer = await ask('GET', '/mesh/table', undefined, admin_token);
        const { sessions } = (await answer.body.json()) as { sessions: Row[] };
        return sessions.find((row) => row.reachable && row.lifecycle === 'SERVING' && row.site === 'home');
      },
      'the replica at home to be reached',
      40_000,
    );
  }

  it('the sites do not reach each other, and records of one come to the other all the same', async () => {
    const row = await reachable();
    expect(row.sources).toEqual(['gossip']);
    const { metadata } = site.registry.get(row.session_id)!;
    const [{ host, port }] = metadata.addresses as [{ host: string; port: number }];
    expect(host).toBe('10.97.1.2');
    expect(metadata.peer!.addresses.some((address) => address.endsWith('/p2p-circuit'))).toBe(true);
    // The middle reaches the agent's port; from away, silence.
    const knock = (from: NetworkHost, patience_ms: number): string =>
      spawnSync(
        from.prefix[0]!,
        [
          ...from.prefix.slice(1),
          process.execPath,
          '-e',
          `const socket = require('node:net').connect(${port}, '${host}', () => done('open'));
           const done = (word) => { console.log(word); process.exit(); };
           socket.on('error', ({ code }) => done(code));
           setTimeout(() => done('silent'), ${patience_ms});`,
        ],
        { encoding: 'utf8' },
      ).stdout.trim();
    expect([knock(between!, 20_000), knock(away!, 1000)]).toEqual(['open', 'silent']);
    await eventually(async () => (await reachable()).load, 'signs of life with load');
  });

  it(`${streams} streams at a time pass, none of them refused`, async () => {
    const opened: Dispatcher.ResponseData['body'][] = [];
    let left = streams;
    const opening = async (): Promise<void> => {
      while (left-- > 0) {
        const { statusCode, body } = await chat(`gather ${streams}`);
        if (statusCode !== 200) throw new Error(`${statusCode}: ${await body.text()}`);
        opened.push(body);
      }
    };
    await Promise.all(Array.from({ length: 16 }, opening));
    // The engine ends them when all are open.
    const texts = await Promise.all(opened.map((body) => body.text()));
    expect(texts).toHaveLength(streams);
    for (const text of texts) expect(text).toMatch(/here[\s\S]*together[\s\S]*\[DONE\]\n\n$/);
  }, 90_000);

  it('a client that reads slowly holds the engine back, in bounded memory, and nobody else', async () => {
    const { body } = await chat('pour 96');
    const stalled = await eventually(
      async () => (await agent.engineLog('m-0')).find((line) => line.startsWith('stalled ')),
      'the engine to be held back',
      30_000,
    );
    expect(Number(stalled.split(' ')[1])).toBeLessThan(48 * 2 ** 20);
    // Its stream stands still; the way is the same for all.
    for (let count = 0; count < 5; count++) {
      const other = await chat('say aside');
      expect(`${other.statusCode} ${await other.body.text()}`).toMatch(/^200 .*aside/);
    }
    let bytes = 0;
    let tail = '';
    for await (const chunk of body) {
      bytes += (chunk as Buffer).length;
      tail = (tail + (chunk as Buffer).toString('latin1')).slice(-20);
    }
    expect(tail).toMatch(/\[DONE\]\n\n$/);
    expect(bytes).toBeGreaterThan(96 * 2 ** 20);
  }, 90_000);

  it('the relay is lost: its streams end with an error, and another on its address carries on', async () => {
    const before = (await reachable()).session_id;
    const cut = await chat('gather 2');
    relay.kill('SIGKILL');
    const text = await cut.body.text();
    expect(text).toContain('here');
    expect(text).toMatch(/"error"/);
    expect(text).not.toContain('[DONE]');
    relay = (await startGateway(between!, 'between', { bootstrap: [], port: mesh_port })).child;
    const again = await eventually(
      async () => {
        const answer = await chat('say again');
        const text = await answer.body.text();
        return answer.statusCode === 200 ? text : undefined;
      },
      'the replica at home to answer over the new relay',
      40_000,
    );
    expect(again).toMatch(/again/);
    // Nothing but the way was lost: it stays who it is.
    expect((await reachable()).session_id).toBe(before);
  }, 90_000);
});

/** Whether somebody listens: the file is there a moment before. */
function opens(path: string): Promise<true | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path, () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(undefined));
  });
}
