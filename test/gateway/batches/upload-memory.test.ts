/** What uploads of files hold of the gateway's memory, over a real connection. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import Fastify, { type FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Batches } from '../../../gateway/batches/batches.ts';
import { batchRoutes } from '../../../gateway/batches/routes.ts';
import { BodyMemory } from '../../../gateway/body-memory.ts';
import { KeptForKeys } from '../../../gateway/kept/kept-for-keys.ts';
import { type ApiKey, KeyStore } from '../../../ledger/index.ts';
import { testConfig, until } from '../support.ts';

const log = pino({ enabled: false });
const mib = 2 ** 20;
let root: string;
let keys: KeyStore;
let key: ApiKey;
let kept: KeptForKeys;
let batches: Batches;
let bodies: BodyMemory;
let app: FastifyInstance;
/** The key of a request is looked for until then. */
let known: Promise<void>;
/** For each upload, when its client is gone. */
let left: Promise<unknown>[];

beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-upload-'));
  keys = await KeyStore.open(join(root, 'keys'));
  ({ key } = keys.create('tester', {}));
  const config = testConfig(root);
  mkdirSync(config.gateway_folder, { recursive: true });
  kept = new KeptForKeys(config, log);
  const ask = async (): Promise<undefined> => undefined;
  batches = new Batches({ gateway_folder: config.gateway_folder, kept, keys, log, ask });
  bodies = new BodyMemory({ bytes_max: 80 * mib, key_bytes_max: 40 * mib, wait_ms: 1000 });
  left = [];
  app = Fastify();
  batchRoutes(app, {
    folder: kept.files,
    batches,
    bodies,
    keyFor: async (request) => {
      left.push(new Promise((resolve) => request.raw.socket.once('close', resolve)));
      await known;
      return key;
    },
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
});
afterEach(async () => {
  await app.close();
  await batches.close();
  await kept.close();
  keys.close();
  rmSync(root, { recursive: true });
});

/** The head of an upload of 30 MiB, of which nothing more is sent. */
function upload(): Socket {
  const client = connect((app.server.address() as AddressInfo).port, '127.0.0.1');
  client.write(
    'POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-type: multipart/form-data; boundary=x\r\n' +
      `content-length: ${30 * mib}\r\n\r\n`,
  );
  return client;
}

it('are given back where the client leaves while its key is looked for', async () => {
  let find = (): void => undefined;
  known = new Promise((resolve) => {
    find = resolve;
  });
  const client = upload();
  await until(() => left.length === 1, 'the upload');
  client.destroy();
  await left[0];
  find();
  await turn();
  expect(bodies.held_bytes).toBe(0);
});

it('are held while it is sent, and given back when it leaves', async () => {
  known = Promise.resolve();
  const client = upload();
  await until(() => bodies.held_bytes === 30 * mib, 'its memory');
  client.destroy();
  await until(() => bodies.held_bytes === 0, 'its memory to be given back');
});
