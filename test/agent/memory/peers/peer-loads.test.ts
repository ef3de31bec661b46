/** Loads of which a part comes from another node's memory: the same bytes, whatever becomes of that node meanwhile. */
import { createReadStream, mkdtempSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { EngineOpening } from '../../../../agent/engine/engine-opening.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { ContentHashCache } from '../../../../agent/memory/content-hashes.ts';
import { describeLoad } from '../../../../agent/memory/describe-load.ts';
import { DevicePool, type DevicePoolOptions } from '../../../../agent/memory/device-pool.ts';
import { learnContents } from '../../../../agent/memory/learn-contents.ts';
import { GroupClaims } from '../../../../agent/memory/peers/group-claims.ts';
import { contentsSchema, tensorRangeOf } from '../../../../agent/memory/peers/peer-messages.ts';
import { SharedTensors } from '../../../../agent/memory/peers/shared-tensors.ts';
import type { WeightLoad } from '../../../../agent/memory/pooled-loading.ts';
import { loadGgml } from '../../../../native/ggml.ts';
import { engineOptions, generate, model, prompt } from '../../engine/support.ts';
import { mib } from '../support.ts';

const ggml = loadGgml();
const folder = mkdtempSync(join(tmpdir(), 'hpcp-'));
const hashes = new ContentHashCache(join(folder, 'tensors'));
const session_id = 'ab'.repeat(16);
const question = prompt(40, 1000, 9);

/** How the peer sends a range. */
type Sending = (descriptor: number, start: number, bytes: number, response: ServerResponse) => void;

const wellSent: Sending = (fd, start, bytes, response) => {
  createReadStream('', { fd, start, end: start + bytes - 1 }).pipe(response);
};

/** The node agent as a worker sees it, and behind it one peer that has all tensors of its files. */
class AgentWithPeer {
  readonly socket: string;
  readonly tensors = new SharedTensors(hashes);
  sending: Sending = wellSent;
  ranges = 0;
  /** So many ranges are refused, since others are read already. */
  refusals = 0;
  readonly #server: Server;

  constructor(name: string) {
    this.socket = join(folder, `${name}.sock`);
    this.#server = createServer((request, response) => void this.#answer(request, response));
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.#server.listen(this.socket, resolve));
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === 'POST') {
      let text = '';
      for await (const chunk of request) text += chunk;
      const { contents } = contentsSchema.parse(JSON.parse(text));
      const held = await this.tensors.held(contents);
      response.end(JSON.stringify({ peers: [{ session_id, node: 'n7', held }] }));
      return;
    }
    if (this.refusals > 0) {
      this.refusals--;
      response.writeHead(429).end();
      return;
    }
    const range = tensorRangeOf(request.url!, `/peers/${session_id}/`)!;
    const found = this.tensors.open(range)!;
    this.ranges++;
    response.writeHead(200, { 'content-length': range.bytes });
    this.sending(found.descriptor, found.start, range.bytes, response);
  }
}

let agent: AgentWithPeer;
let pool: DevicePool | undefined;
const paths: Record<'plain' | 'converted', string> = { plain: '', converted: '' };

beforeAll(async () => {
  paths.plain = await model('small-llama', 'BF16');
  paths.converted = await model('small-llama', 'Q4_0');
  for (const path of Object.values(paths)) await learnContents(hashes, path);
  agent = new AgentWithPeer('agent');
  for (const path of Object.values(paths)) agent.tensors.add(path);
  await agent.listen();
}, 120_000);
afterEach(async () => {
  agent.sending = wellSent;
  pool?.verify();
  await pool?.close();
  pool = undefined;
});
afterAll(() => {
  agent.close();
  rmSync(folder, { recursive: true });
});

function newPool(more: Partial<DevicePoolOptions> = {}): DevicePool {
  pool = new DevicePool(ggml, {
    pool_bytes: 160 * mib,
    threads: 1,
    // Many small units: the file takes seconds, and the peer, which is asked by other threads, gets its share.
    unit_bytes: 512,
    content_hashes: hashes,
    peers_socket: agent.socket,
    peer_bytes_min: mib,
    // As on a node that has never read the file.
    resident: (_, ranges) => ranges.map(() => false),
    ...more,
  });
  return pool;
}

/** The agent is in this thread, too: it must have its turn. */
async function finish(opening: EngineOpening): Promise<NativeEngine> {
  for (;;) {
    const engine = opening.advance(false);
    if (engine) return engine;
    await delay(1);
  }
}

/** Loads a model and compares its answer with that of one that was read from the file alone. */
async function loadAndCompare(from: DevicePool, path: string): Promise<WeightLoad> {
  let load: WeightLoad | undefined;
  const options = engineOptions(path, { kv_tokens: 512, batch_invariant: true });
  const engine = await finish(from.open(options, { on_loaded: (done) => (load = done) }));
  const alone = new NativeEngine(options);
  try {
    const asked = [{ prompt: question, max_new_tokens: 8 }];
    expect(generate(engine, asked)).toEqual(generate(alone, asked));
  } finally {
    engine.close();
    alone.close();
  }
  return load!;
}

const fromPeers = ({ peers }: WeightLoad): number => peers.reduce((sum, { bytes }) => sum + bytes, 0);

describe('a load with a peer', () => {
  test.each(['plain', 'converted'] as const)('brings the same weights, %s ones', async (kind) => {
    const load = await loadAndCompare(newPool(), paths[kind]);
    expect(fromPeers(load)).toBeGreaterThan(0);
    expect(load.peers.map(({ node, trouble }) => [node, trouble])).toEqual([['n7', undefined]]);
    expect(describeLoad(load)).toMatch(
      / MB came in \d+ ms \(\d+ MB\/s\), \d+ MB of them from the memory of n7$/,
    );
  });

  test('does not ask where the file is in memory here', async () => {
    pool = new DevicePool(ggml, {
      pool_bytes: 160 * mib,
      threads: 1,
      content_hashes: hashes,
      peers_socket: agent.socket,
      peer_bytes_min: mib,
    });
    const before = agent.ranges;
    expect((await loadAndCompare(pool, paths.plain)).peers).toEqual([]);
    expect(agent.ranges).toBe(before);
  });

  test('goes on from the file where the peer goes away in mid-load', async () => {
    let sent = 0;
    agent.sending = (fd, start, bytes, response) => {
      sent++;
      if (sent < 4) return wellSent(fd, start, bytes, response);
      response.write(Buffer.alloc(1000));
      setTimeout(() => response.destroy(), 5);
    };
    const load = await loadAndCompare(newPool(), paths.plain);
    expect(sent).toBeGreaterThanOrEqual(4);
    expect(load.peers[0]!.trouble).toMatch(/aborted|hang up|reset|bytes came/);
  });

  test('takes nothing of a tensor of which one byte is wrong', async () => {
    agent.sending = (fd, start, bytes, response) => {
      const stream = createReadStream('', { fd, start, end: start + bytes - 1 });
      stream.once('data', (chunk) => {
        (chunk as Buffer)[0]! ^= 1;
        response.write(chunk);
        stream.pipe(response);
      });
    };
    const load = await loadAndCompare(newPool(), paths.plain);
    expect(fromPeers(load)).toBe(0);
    expect(load.peers[0]!.trouble).toMatch(/^what it sent as tensor .* has the hash /);
  });

  test('does not wait for a peer that sends nothing', async () => {
    agent.sending = () => undefined;
    const from = newPool({ peer_bytes_min: Number.POSITIVE_INFINITY });
    const { total_ms: file_ms } = await loadAndCompare(from, paths.plain);
    await from.close();
    const before = agent.ranges;
    const load = await loadAndCompare(newPool(), paths.plain);
    expect(agent.ranges).toBeGreaterThan(before);
    expect(fromPeers(load)).toBe(0);
    // A range of which no byte comes is silent for 2 s: they are given up together, not one after another.
    expect(load.total_ms).toBeLessThan(file_ms + 2 * 2000);
  });

  test('does not wait for a peer that is much slower than the file', async () => {
    const ended: number[] = [];
    agent.sending = (fd, start, bytes, response) => {
      const stream = createReadStream('', { fd, start, end: start + bytes - 1, highWaterMark: 512 });
      let sent = 0;
      stream.on('data', (chunk) => {
        stream.pause();
        response.write(chunk);
        sent += chunk.length;
        setTimeout(() => stream.resume(), 50);
      });
      response.on('close', () => {
        ended.push(sent / bytes);
        stream.destroy();
      });
    };
    const load = await loadAndCompare(newPool(), paths.plain);
    expect(fromPeers(load)).toBe(0);
    // It was heard, and never silent; and nothing is fetched on that nobody waits for.
    // Small tensors of the group came in one piece.
    await expect.poll(() => ended.filter((share) => share > 0 && share < 1).length).toBeGreaterThan(0);
    expect(load.peers.map(({ trouble }) => trouble).filter(Boolean)).toEqual([]);
  });

  test('asks a peer again that serves as many as it can', async () => {
    agent.refusals = 3;
    const load = await loadAndCompare(newPool(), paths.plain);
    expect(agent.refusals).toBe(0);
    expect(fromPeers(load)).toBeGreaterThan(0);
    expect(load.peers[0]!.trouble).toBeUndefined();
  });

  test('is given up with what is on its way, and nothing of it is found', async () => {
    const from = newPool();
    const before = agent.ranges;
    let given_up = false;
    // A busy machine may be through with the file before the peer was asked: then once more.
    for (let attempt = 0; attempt < 5 && !given_up; attempt++) {
      const opening = from.open(engineOptions(paths.plain, { kv_tokens: 512 }));
      let engine: NativeEngine | undefined;
      while (!engine && agent.ranges === before) {
        engine = opening.advance(false);
        await delay(1);
      }
      given_up = engine === undefined;
      if (given_up) opening.abort();
      engine?.close();
      from.store.clear();
    }
    expect(given_up).toBe(true);
    from.verify();
    expect(from.store.stats()).toMatchObject({ active_bytes: 0, reusable_bytes: 0, lost_bytes: 0 });
    expect(fromPeers(await loadAndCompare(from, paths.plain))).toBeGreaterThan(0);
  });

  test('is one from the file where the agent does not answer', async () => {
    pool = new DevicePool(ggml, {
      pool_bytes: 160 * mib,
      threads: 1,
      content_hashes: hashes,
      peers_socket: join(folder, 'nobody.sock'),
      peer_bytes_min: mib,
      resident: (_, ranges) => ranges.map(() => false),
    });
    const load = await loadAndCompare(pool, paths.plain);
    expect(load.peers).toEqual([
      { node: 'the node agent', bytes: 0, trouble: expect.stringMatching(/ENOENT/) },
    ]);
  });
});

describe('claims of groups', () => {
  test('each group is brought by one side, and what is taken back is not placed', () => {
    const claims = new GroupClaims(4);
    claims.withhold(3);
    const all = (): boolean => true;
    expect(claims.takeForPeer(all)).toBe(2);
    expect(claims.takeForFile(2)).toBe(false);
    expect([claims.takeForFile(0), claims.takeForFile(0), claims.takeForFile(3)]).toEqual([true, true, true]);
    expect(claims.takeForPeer(all)).toBe(1);
    expect(claims.beginPlacing(2)).toBe(true);
    claims.stop();
    expect(claims.beginPlacing(1)).toBe(false);
    expect(claims.pending).toBe(true);
    claims.placed(2);
    expect([claims.pending, claims.in('returned')]).toEqual([false, [1]]);
    expect(claims.takeForPeer(all)).toBeUndefined();
  });

  test('one that is taken in the very moment of the stop is not placed', () => {
    const claims = new GroupClaims(1);
    // The other thread stops between the look and the taking.
    const taken = claims.takeForPeer(() => {
      claims.stop();
      return true;
    });
    expect([taken, claims.beginPlacing(0), claims.pending, claims.in('returned')]).toEqual([
      undefined,
      false,
      false,
      [0],
    ]);
  });
});
