/** A gateway of several processes, a replica that it reaches, and clients with a connection each. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { Client } from 'undici';
import { openLedgerReader } from '../../../ledger/index.ts';
import { RendezvousRegistry } from '../../../mesh/index.ts';
import type { KeySettings } from '../../../spec/key-settings.ts';
import type { DeviceDescription } from '../../../spec/session-record.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../../../spec/state-layout.ts';
import { GatewayProcess } from '../gateway-process.ts';
import { type Answer, TestSession, testConfig, until } from '../support.ts';

const prompt_tokens = 12;
const completion_tokens = 8;
export const perAnswer = prompt_tokens + completion_tokens;

export interface Asked {
  status: number;
  request_id: string;
  headers: Record<string, string | string[] | undefined>;
  text: string;
}

/** With one connection, which it keeps. */
export interface TestClient {
  /** How often it was answered with 200. */
  readonly answered: number;
  ask(key: string, body?: object): Promise<Asked>;
}

let requests = 0;

/** Started with its replica, and as a process that has others. */
export class GatewayOfWorkers {
  readonly folder: string;
  readonly process: GatewayProcess;
  readonly endpoint: GatewayEndpoint;
  readonly replica: TestSession;
  readonly #registry: RendezvousRegistry;
  readonly #config: GatewayConfig;
  readonly #clients: Client[] = [];
  readonly #others: TestSession[] = [];
  /** Requests with which it was found out that it serves. */
  readonly own = new Set<string>();
  /** What a replica does before it answers. */
  before: () => Promise<void> = async () => undefined;

  private constructor(
    folder: string,
    config: GatewayConfig,
    registry: RendezvousRegistry,
    replica: TestSession,
    process: GatewayProcess,
    endpoint: GatewayEndpoint,
  ) {
    this.folder = folder;
    this.#config = config;
    this.#registry = registry;
    this.replica = replica;
    this.process = process;
    this.endpoint = endpoint;
    replica.answer = async (_request, response) => {
      await this.before();
      response.writeHead(200, { 'content-type': 'application/json' });
      const usage = { prompt_tokens, completion_tokens, total_tokens: perAnswer };
      response.end(JSON.stringify({ choices: [], usage }));
    };
  }

  static async start(processes: number, change: Partial<GatewayConfig> = {}): Promise<GatewayOfWorkers> {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-workers-test-'));
    const config = testConfig(folder, { processes, ...change });
    const registry = await RendezvousRegistry.open(config.mesh_folder, { create: true, poll_ms: 50 });
    const devices: DeviceDescription[] = [{ kind: 'gpu', model: 'A100-40GB', memory_bytes: 40e9, isa: [] }];
    const replica = await TestSession.start(registry, () => undefined, { metadata: { devices } });
    replica.load = { max_sequences: 64 };
    const process = new GatewayProcess(config);
    // One that is too late must not live on without its test.
    const endpoint = await process.listening().catch(async (error: unknown) => {
      await process.end('SIGKILL');
      throw error;
    });
    const started = new GatewayOfWorkers(folder, config, registry, replica, process, endpoint);
    // Each worker has its own way to the replica; until it is open, requests there wait for it.
    const { key } = await started.newKey();
    const clients = Array.from({ length: 2 * processes }, () => started.client());
    await Promise.all(
      clients.map((client) =>
        until(async () => {
          const { status, request_id } = await client.ask(key);
          started.own.add(request_id);
          return status === 200;
        }, 'a worker to reach the replica'),
      ),
    );
    return started;
  }

  /** Of the workers, the first one first. */
  workers(): number[] {
    const { pid } = this.endpoint;
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
  }

  /** A further replica. */
  async another(answer: Answer): Promise<TestSession> {
    const { devices } = this.replica.own.record.metadata;
    const another = await TestSession.start(this.#registry, answer, { node: 'node2', metadata: { devices } });
    this.#others.push(another);
    return another;
  }

  client(): TestClient {
    const client = new Client(this.endpoint.url);
    this.#clients.push(client);
    let answered = 0;
    return {
      get answered() {
        return answered;
      },
      ask: async (key, body = {}) => {
        const request_id = `test-${requests++}`;
        const answer = await client.request({
          method: 'POST',
          path: '/v1/chat/completions',
          headers: {
            authorization: `Bearer ${key}`,
            'content-type': 'application/json',
            'x-request-id': request_id,
          },
          body: JSON.stringify({
            model: 'tiny',
            messages: [{ role: 'user', content: 'x' }],
            max_tokens: completion_tokens,
            ...body,
          }),
        });
        const text = await answer.body.text();
        if (answer.statusCode === 200) answered++;
        return { status: answer.statusCode, request_id, headers: answer.headers, text };
      },
    };
  }

  newKey(settings?: KeySettings): Promise<{ id: string; key: string }> {
    return this.process.newKey(this.endpoint, settings);
  }

  /** @throws Error where it is refused */
  async admin(path: string, method: string, body: object): Promise<void> {
    const answer = await this.process.admin(this.endpoint, path, { method, body });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  }

  async spent(id: string): Promise<number | undefined> {
    const answer = await this.process.admin(this.endpoint, '/hpcserve/v1/keys');
    const { keys } = (await answer.json()) as { keys: { id: string; spent?: { total_tokens: number } }[] };
    return keys.find((each) => each.id === id)?.spent?.total_tokens;
  }

  /** What is in the ledger. */
  async recorded(): Promise<{ request_id: string; status: number; device_s: number; duration_ms: number }[]> {
    const path = join(this.#config.gateway_folder, gatewayFiles.ledger);
    // A reader waits until what was answered is in the tables.
    openLedgerReader(path).close();
    const db = new Database(path, { readonly: true });
    try {
      return db.prepare('SELECT request_id, status, device_s, duration_ms FROM requests').all() as Awaited<
        ReturnType<GatewayOfWorkers['recorded']>
      >;
    } finally {
      db.close();
    }
  }

  async close(): Promise<void> {
    for (const client of this.#clients) await client.destroy();
    await this.process.end('SIGKILL');
    for (const session of [this.replica, ...this.#others]) await session.kill();
    await this.#registry.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
