/** Loads of which a part comes from another node's memory: the same bytes, whatever becomes of that node meanwhile. */

import { closeSync, createReadStream, mkdtempSync, openSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import koffi from 'koffi';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { EngineOpening } from '../../../../agent/engine/engine-opening.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { ContentHashCache, rangeOfKey } from '../../../../agent/memory/content-hashes.ts';
import { describeLoad, weightSources } from '../../../../agent/memory/describe-load.ts';
import { DevicePool, type DevicePoolOptions } from '../../../../agent/memory/device-pool.ts';
import { type FileVersion, fileVersion } from '../../../../agent/memory/file-version.ts';
import { learnContents } from '../../../../agent/memory/learn-contents.ts';
import { LoadCounters, type LoadWork } from '../../../../agent/memory/load/load-work.ts';
import { OpenModelFile } from '../../../../agent/memory/load/open-model-file.ts';
import type { TensorLoad } from '../../../../agent/memory/load/pieces.ts';
import { TensorLoading } from '../../../../agent/memory/load/tensor-loading.ts';
import { UnitLoader } from '../../../../agent/memory/load/unit-loader.ts';
import { GroupClaims } from '../../../../agent/memory/peers/group-claims.ts';
import { loadFromPeers, type PeerNews } from '../../../../agent/memory/peers/peer-loader.ts';
import { contentsSchema, tensorRangeOf } from '../../../../agent/memory/peers/peer-messages.ts';
import { PeerShare } from '../../../../agent/memory/peers/peer-share.ts';
import { type PooledTensors, SharedTensors } from '../../../../agent/memory/peers/shared-tensors.ts';
import type { WeightLoad } from '../../../../agent/memory/pooled-loading.ts';
import { loadGgml, memoryAt } from '../../../../native/ggml.ts';
import type { Pointer } from '../../../../native/signature.ts';
import { engineOptions, generate, model, prompt } from '../../engine/support.ts';
import { testBackend } from '../../engine/test-backend.ts';
import { mib } from '../support.ts';

const ggml = loadGgml();
const folder = mkdtempSync(join(tmpdir(), 'hpcp-'));
const hashes = new ContentHashCache(join(folder, 'tensors'));
const session_id = 'ab'.repeat(16);
const question = prompt(40, 1000, 9);

const nothingPooled: PooledTensors = {
  held: () => Promise.resolve([]),
  read: () => Promise.resolve(undefined),
};

/** How the peer sends a range. */
type Sending = (descriptor: number, start: number, bytes: number, response: ServerResponse) => void;

const wellSent: Sending = (fd, start, bytes, response) => {
  createReadStream('', { fd, start, end: start + bytes - 1 }).pipe(response);
};

/** The node agent as a worker sees it, and behind it one peer that has all tensors of its files. */
class AgentWithPeer {
  readonly socket: string;
  readonly tensors = new SharedTensors(hashes, nothingPooled);
  sending: Sending = wellSent;
  ranges = 0;
  /** So many ranges are refused, since others are read already. */
  refusals = 0;
  /** It does not say who has what. */
  knowsNobody = false;
  /** Connections that were ever opened, and those that still are. */
  connections = 0;
  readonly #open = new Set<Socket>();
  readonly #server: Server;

  constructor(name: string) {
    this.socket = join(folder, `${name}.sock`);
    // Without an end to idle connections: who asks for tensors ends them once it is through.
    const options = { keepAliveTimeout: 0 };
    this.#server = createServer(options, (request, response) => void this.#answer(request, response));
    this.#server.on('connection', (socket: Socket) => {
      this.connections++;
      this.#open.add(socket);
      socket.once('close', () => this.#open.delete(socket));
    });
  }

  get idle(): boolean {
    return this.#open.size === 0;
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.#server.listen(this.socket, resolve));
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  #has(content: string): boolean {
    const found = this.tensors.open({ content, offset: 0, bytes: 1 });
    if (found) closeSync(found.descriptor);
    return found !== undefined;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === 'POST') {
      let text = '';
      for await (const chunk of request) text += chunk;
      const { contents } = contentsSchema.parse(JSON.parse(text));
      if (this.knowsNobody) {
        response.writeHead(503).end();
        return;
      }
      // All that it has: which of it is in the page cache changes with whatever else runs here.
      const held = contents.flatMap((content, index) => (this.#has(content) ? [index] : []));
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
  agent.knowsNobody = false;
  pool?.verify();
  await pool?.close();
  pool = undefined;
});
afterAll(() => {
  agent.close();
  rmSync(folder, { recursive: true });
});

function newPool(more: Partial<DevicePoolOptions> = {}): DevicePool {
  pool = new DevicePool(testBackend(), {
    pool_bytes: 160 * mib,
    threads: 1,
    content_hashes: hashes,
    peers_socket: agent.socket,
    peer_bytes_min: mib,
    // As on a node that has never read the file.
    resident: (_, ranges) => ranges.map(() => false),
    ...more,
  });
  return pool;
}

/**
 * When the file's threads begin. `advance` starts them: a load that is not looked after holds them, so that what the
 * peer is asked does not depend on who is faster.
 */
type Hold = () => boolean;

const notHeld: Hold = () => true;

/** Until the peer is asked for its first range. */
function untilAsked(): Hold {
  const before = agent.ranges;
  return () => agent.ranges > before;
}

/** Until whoever asks for tensors is through with all that it can get: it has closed what it had opened. */
function untilThrough(): Hold {
  const before = agent.connections;
  return () => agent.connections > before && agent.idle;
}

/** The agent is in this thread, too: it must have its turn. */
async function finish(opening: EngineOpening): Promise<NativeEngine> {
  for (;;) {
    const engine = opening.advance(false);
    if (engine) return engine;
    await delay(1);
  }
}

interface Compared {
  load: WeightLoad;
  /** Since the file's threads were let go. */
  took_ms: number;
}

/** Loads a model and compares its answer with that of one that was read from the file alone. */
async function loadAndCompare(from: DevicePool, path: string, hold = notHeld): Promise<Compared> {
  let load: WeightLoad | undefined;
  const options = engineOptions(path, { kv_tokens: 512, batch_invariant: true });
  const opening = from.open(options, { on_loaded: (done) => (load = done) });
  await expect.poll(hold, { interval: 1, timeout: 40_000 }).toBe(true);
  const started = performance.now();
  const engine = await finish(opening);
  const took_ms = performance.now() - started;
  const alone = new NativeEngine(options);
  try {
    const asked = [{ prompt: question, max_new_tokens: 8 }];
    expect(generate(engine, asked)).toEqual(generate(alone, asked));
  } finally {
    engine.close();
    alone.close();
  }
  return { load: load!, took_ms };
}

function versionOf(path: string): FileVersion {
  return fileVersion(path, statSync(path, { bigint: true }));
}

const fromPeers = ({ peers }: WeightLoad): number => peers.reduce((sum, { bytes }) => sum + bytes, 0);

describe('a load with a peer', () => {
  test.each(['plain', 'converted'] as const)('brings the same weights, %s ones', async (kind) => {
    const { size } = statSync(paths[kind]);
    // The first half comes from the file, the second from the peer.
    const from = newPool({
      resident: (_, ranges) => ranges.map(({ offset_bytes }) => offset_bytes < size / 2),
    });
    const { load } = await loadAndCompare(from, paths[kind], untilThrough());
    expect(fromPeers(load)).toBeGreaterThan(0);
    expect(fromPeers(load)).toBeLessThan(size);
    const leg = load.legs.find((one) => one.leg === 'peer')!;
    expect(leg.bytes).toBe(fromPeers(load));
    expect(leg.thread_ms).toBeGreaterThan(0);
    expect(load.peers.map(({ node, trouble }) => [node, trouble])).toEqual([['n7', undefined]]);
    expect(weightSources(load)).toMatchObject({
      reused_bytes: 0,
      loaded_bytes: load.missing_bytes,
      from_nodes: { n7: fromPeers(load) },
    });
    expect(describeLoad(load)).toMatch(
      / MB came in \d+ ms \(\d+ MB\/s\), \d+ MB of them from the memory of n7(; past the page cache, which could not keep it)?; a thread: /,
    );
  });

  test.each(['plain', 'converted'] as const)('takes %s ones from whoever is first', async (kind) => {
    const { load } = await loadAndCompare(newPool(), paths[kind], untilAsked());
    expect(load.peers.map(({ trouble }) => trouble).filter(Boolean)).toEqual([]);
  });

  test('does not ask where the file is in memory here', async () => {
    const from = newPool({ resident: (_, ranges) => ranges.map(() => true) });
    const before = agent.ranges;
    expect((await loadAndCompare(from, paths.plain)).load.peers).toEqual([]);
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
    const through = untilThrough();
    const { load } = await loadAndCompare(newPool(), paths.plain, () => sent >= 4 && through());
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
    const { load } = await loadAndCompare(newPool(), paths.plain, untilThrough());
    expect(fromPeers(load)).toBe(0);
    expect(load.peers[0]!.trouble).toMatch(/^what it sent as tensor .* has the hash /);
    const { from_nodes, troubles } = weightSources(load);
    expect([from_nodes, troubles]).toEqual([{}, { n7: load.peers[0]!.trouble }]);
  });

  test('does not wait for a peer that sends nothing', async () => {
    agent.sending = () => undefined;
    const from = newPool({ peer_bytes_min: Number.POSITIVE_INFINITY });
    const { took_ms: file_ms } = await loadAndCompare(from, paths.plain);
    await from.close();
    const { load, took_ms } = await loadAndCompare(newPool(), paths.plain, untilAsked());
    expect(fromPeers(load)).toBe(0);
    // A range of which no byte comes is silent for 2 s: they are given up together, not one after another.
    expect(took_ms).toBeLessThan(file_ms + 2 * 2000);
  });

  test('does not wait for a peer that is much slower than the file', async () => {
    const ended: number[] = [];
    let heard = false;
    agent.sending = (fd, start, bytes, response) => {
      const stream = createReadStream('', { fd, start, end: start + bytes - 1, highWaterMark: 512 });
      let sent = 0;
      stream.on('data', (chunk) => {
        stream.pause();
        response.write(chunk);
        sent += chunk.length;
        heard = true;
        setTimeout(() => stream.resume(), 50);
      });
      response.on('close', () => {
        ended.push(sent / bytes);
        stream.destroy();
      });
    };
    const { load } = await loadAndCompare(newPool(), paths.plain, () => heard);
    expect(fromPeers(load)).toBe(0);
    // It was heard, and never silent; and nothing is fetched on that nobody waits for.
    // Small tensors of the group came in one piece.
    await expect.poll(() => ended.filter((share) => share > 0 && share < 1).length).toBeGreaterThan(0);
    expect(load.peers.map(({ trouble }) => trouble).filter(Boolean)).toEqual([]);
  });

  test('asks a peer again that serves as many as it can', async () => {
    agent.refusals = 3;
    const { load } = await loadAndCompare(newPool(), paths.plain, untilThrough());
    expect(agent.refusals).toBe(0);
    expect(fromPeers(load)).toBeGreaterThan(0);
    expect(load.peers[0]!.trouble).toBeUndefined();
  });

  test('is given up with what is on its way, and nothing of it is found', async () => {
    const from = newPool();
    const asked = untilAsked();
    agent.sending = () => undefined;
    const opening = from.open(engineOptions(paths.plain, { kv_tokens: 512 }));
    await expect.poll(asked, { interval: 1, timeout: 40_000 }).toBe(true);
    // The file's threads begin, and what the peer was asked for does not come: it is not over yet.
    expect(opening.advance(false)).toBeUndefined();
    opening.abort();
    from.verify();
    expect(from.store.stats()).toMatchObject({ active_bytes: 0, reusable_bytes: 0, lost_bytes: 0 });
    agent.sending = wellSent;
    const { load } = await loadAndCompare(from, paths.plain, untilThrough());
    expect(fromPeers(load)).toBeGreaterThan(0);
  });

  test('is one from the file where the agent does not say who has it', async () => {
    agent.knowsNobody = true;
    const { load } = await loadAndCompare(newPool(), paths.plain, untilThrough());
    expect(load.peers).toEqual([{ node: 'the node agent', bytes: 0, trouble: 'the answer was 503' }]);
  });

  test('holds the file no longer where there is no agent', async () => {
    const claims = new GroupClaims(1);
    const news: PeerNews[] = [];
    const units = new UnitLoader(ggml);
    const load = {
      descriptor: -1,
      path: '',
      size_bytes: 0,
      layouts: [],
      upload: undefined,
      units: [],
      counters: new LoadCounters().shared,
    };
    const socket_path = join(folder, 'nobody.sock');
    await loadFromPeers({ load, groups: [], claims: claims.shared, socket_path }, units, (one) =>
      news.push(one),
    );
    expect(claims.stage).toBe('begun');
    expect(news).toEqual([{ node: 'the node agent', trouble: expect.stringMatching(/ENOENT/) }]);
  });
});

/** A load whose file is read by a thread that takes one unit, and never comes back from its read. */
function hangingLoad(path: string) {
  const version = versionOf(path);
  const contents = hashes.read(version)!;
  let pool_bytes = 0;
  const tensors = [...contents.keys()].map((key): TensorLoad => {
    const range = rangeOfKey(key);
    const pool_offset = pool_bytes;
    pool_bytes += range.size_bytes;
    const rows = { type: 0, row_elements: range.size_bytes, rows: 1, planes: 1 };
    return { name: key, parts: [range], ...rows, layout: 0, pool_offset };
  });
  const share = new PeerShare(agent.socket, ggml.libraries.folder, (_, all) => all.map(() => false), 1);
  const offered = share.cut(version, tensors, mib, contents)!;
  const base = koffi.alloc('uint8_t', pool_bytes) as Pointer;
  const span = { begin: 0, end: pool_bytes, base, buffer: base };
  const source = new OpenModelFile(version);
  const counters = new LoadCounters();
  const work: LoadWork = {
    descriptor: source.descriptor,
    path,
    size_bytes: Number(version.size_bytes),
    layouts: [[span]],
    upload: undefined,
    units: offered.units,
    shared: offered.shared,
    counters: counters.shared,
  };
  let hung = 0;
  const group = offered.shared.group_of[0]!;
  const loading = new TensorLoading({
    source,
    work,
    start: () => {
      counters.enter();
      counters.take(1);
      offered.claims.takeForFile(group);
      return { step: () => false, end: () => undefined };
    },
    fetching: share.begin(work, offered),
    onProgress: () => undefined,
    onDirectRefused: () => undefined,
    onHang: () => void hung++,
  });
  const bytesOf = (load: TensorLoad): Buffer =>
    Buffer.from(memoryAt(base + BigInt(load.pool_offset), load.parts[0]!.size_bytes));
  const close = async (): Promise<void> => {
    await share.close();
    koffi.free(base);
  };
  return { loading, counters, claims: offered.claims, group, tensors, bytesOf, hung: () => hung, close };
}

test('a file that hangs is not waited for where peers have the rest', async () => {
  const { loading, counters, claims, group, tensors, bytesOf, hung, close } = hangingLoad(paths.plain);
  try {
    await expect.poll(() => loading.advance(false), { interval: 2, timeout: 30_000 }).toBe(true);
    const file = readFileSync(paths.plain);
    for (const load of tensors) {
      const { offset_bytes, size_bytes } = load.parts[0]!;
      expect(bytesOf(load).equals(file.subarray(offset_bytes, offset_bytes + size_bytes)), load.name).toBe(
        true,
      );
    }
    const bytes = tensors.reduce((sum, { parts }) => sum + parts[0]!.size_bytes, 0);
    expect(loading.peers).toEqual([{ node: 'n7', bytes }]);
    // The thread keeps the file, and nothing else: what it has read it may not place any more.
    expect([hung(), loading.isClosed, claims.beginUnit(group)]).toEqual([1, false, false]);
    expect(loading.letGo()).toBe('leaving');
    counters.leave();
    expect([loading.letGo(), loading.isClosed]).toEqual(['gone', true]);
  } finally {
    await close();
  }
});

test.each([false, true])('what a thread reads is placed unless it was recalled (%s)', (isRecalled) => {
  const path = paths.plain;
  const claims = new GroupClaims(1);
  const counters = new LoadCounters();
  const base = koffi.alloc('uint8_t', mib) as Pointer;
  memoryAt(base, mib).fill(0);
  const descriptor = openSync(path, 'r');
  const loader = new UnitLoader(ggml);
  try {
    loader.run({
      get descriptor() {
        // It is in its read.
        if (isRecalled) expect(claims.recall(0)).toBe(true);
        return descriptor;
      },
      path,
      size_bytes: statSync(path).size,
      layouts: [[{ begin: 0, end: mib, base, buffer: base }]],
      upload: undefined,
      units: [[{ kind: 'plain', file_offset: 0, pool_offset: 0, bytes: mib }]],
      shared: { group_of: [0], claims: claims.shared },
      counters: counters.shared,
    });
    const wanted = isRecalled ? Buffer.alloc(mib) : readFileSync(path).subarray(0, mib);
    expect(Buffer.from(memoryAt(base, mib)).equals(wanted)).toBe(true);
    expect([counters.bytes, counters.active, counters.failed]).toEqual([isRecalled ? 0 : mib, 0, false]);
    expect(claims.isWhole(0, 1)).toBe(!isRecalled);
  } finally {
    loader.free();
    closeSync(descriptor);
    koffi.free(base);
  }
});

test('a node offers what is in its page cache, of files that it knows', async () => {
  const tensors = new SharedTensors(hashes, nothingPooled);
  tensors.add(paths.plain);
  const known = [...hashes.read(versionOf(paths.plain))!.values()];
  const contents = ['of no file', ...known];
  const all = known.map((_, index) => index + 1);
  // Read again where the kernel needed the memory for others meanwhile.
  const offered = (): Promise<number[]> => {
    readFileSync(paths.plain);
    return tensors.held(contents);
  };
  await expect.poll(offered, { timeout: 20_000 }).toEqual(all);
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
