/** What workers pass on to the primary, and the ways in to them. */
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { Agent, request } from 'undici';
import { expect, it } from 'vitest';
import { gatewayFiles } from '../../../spec/state-layout.ts';
import { GatewayProcess } from '../gateway-process.ts';
import { chatAnswer, json, type Stage, startStage, testConfig, until } from '../support.ts';

const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] };
const path = '/v1/chat/completions';

async function withStage(
  change: Parameters<typeof startStage>[1],
  use: (stage: Stage) => Promise<void>,
): Promise<void> {
  const stage = await startStage({}, { processes: 2, ...change });
  try {
    // Of the tier that batches ask for.
    await stage.session(json(chatAnswer), { metadata: { tier: 'scavenger' } });
    await use(stage);
  } finally {
    await stage.close();
  }
}

it('paths that are not of replicas are answered as by one process', async () => {
  await withStage({}, async (stage) => {
    expect(await (await fetch(`${stage.url}/health`)).json()).toEqual({ status: 'ok' });
    const headers = { authorization: `Bearer ${stage.key}` };
    await until(async () => {
      const { data } = (await (await fetch(`${stage.url}/v1/models`, { headers })).json()) as {
        data: { id: string }[];
      };
      return data.length === 1 && data[0]!.id === 'tiny';
    }, 'the model to be listed');
    const page = await fetch(`${stage.url}/dashboard/`);
    expect(page.status).toBe(200);
    expect(await page.text()).toContain('<!doctype html>');
    const nothing = await fetch(`${stage.url}/nothing/here`, { method: 'POST', headers, body: 'x' });
    expect(nothing.status).toBe(404);
    expect(nothing.headers.get('x-hpcserve-error')).toBe('E_REQUEST_PATH');
    expect((await stage.admin('/hpcserve/v1/keys')).status).toBe(200);
    expect((await fetch(`${stage.url}/hpcserve/v1/keys`)).status).toBe(401);
  });
});

it('batches run, over the primary, and are recorded once', async () => {
  await withStage({}, async (stage) => {
    const headers = { authorization: `Bearer ${stage.key}` };
    const lines = ['a', 'b', 'c'].map((custom_id) =>
      JSON.stringify({ custom_id, method: 'POST', url: path, body: chat }),
    );
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new Blob([`${lines.join('\n')}\n`]), 'requests.jsonl');
    const uploaded = await fetch(`${stage.url}/v1/files`, { method: 'POST', headers, body: form });
    expect(uploaded.status).toBe(200);
    const { id: input_file_id } = (await uploaded.json()) as { id: string };
    const asked = await stage.post('/v1/batches', {
      input_file_id,
      endpoint: path,
      completion_window: '24h',
    });
    const { id } = (await asked.json()) as { id: string };
    let found: { status?: string; request_counts?: object } = {};
    await until(async () => {
      const answer = await fetch(`${stage.url}/v1/batches/${id}`, { headers });
      found = (await answer.json()) as typeof found;
      return found.status === 'completed' || found.status === 'failed';
    }, 'the batch to end');
    expect(found).toMatchObject({
      status: 'completed',
      request_counts: { total: 3, completed: 3, failed: 0 },
    });
  });
});

it('a connection without a valid key ends behind its answer; with one it stays, whoever answers', async () => {
  await withStage({}, async (stage) => {
    const ask = async (key: string | undefined): Promise<string | undefined> => {
      const { port } = new URL(stage.url);
      const socket = connect(Number(port), '127.0.0.1');
      const head = key === undefined ? '' : `authorization: Bearer ${key}\r\n`;
      let text = '';
      socket.on('data', (bytes: Buffer) => {
        text += bytes.toString();
      });
      socket.write(`GET /v1/models HTTP/1.1\r\nhost: x\r\n${head}\r\n`);
      await until(() => /\r\n\r\n[\s\S]*\}/.test(text), 'an answer');
      socket.destroy();
      return /^connection: (.*)$/im.exec(text)?.[1];
    };
    expect(await ask(undefined)).toBe('close');
    expect(await ask('hsk-not-a-key')).toBe('close');
    expect(await ask(stage.key)).toBe('keep-alive');
  });
});

it('both workers show clients the certificate that is written down, and answer on the unix socket', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-workers-tls-test-'));
  const socket = join(folder, 'run', 'gateway.sock');
  const tls = { authority_folder: join(folder, 'tls'), names: [] };
  const config = testConfig(folder, { processes: 2, tls, socket });
  const gateway = new GatewayProcess(config);
  try {
    const { port } = await gateway.listening();
    const written = new X509Certificate(readFileSync(join(config.gateway_folder, gatewayFiles.certificate)));
    const ca = readFileSync(join(folder, 'tls', 'ca.pem'));
    // Connections that stay: the second one goes to the other worker.
    const sockets = await Promise.all([1, 2].map(() => connected(port, ca)));
    for (const secure of sockets)
      expect(secure.getPeerCertificate().fingerprint256).toBe(written.fingerprint256);
    for (const secure of sockets) secure.destroy();
    const agent = new Agent({ connect: { socketPath: socket } });
    for (let turn = 0; turn < 4; turn++) {
      const answer = await request('http://localhost/health', { dispatcher: agent });
      expect(await answer.body.json()).toEqual({ status: 'ok' });
    }
    await agent.close();
  } finally {
    await gateway.end('SIGTERM');
    rmSync(folder, { recursive: true, force: true });
  }
});

async function connected(port: number, ca: Buffer): Promise<TLSSocket> {
  const socket = connectTls({ host: '127.0.0.1', port, ca, servername: 'localhost' });
  await once(socket, 'secureConnect');
  return socket;
}
