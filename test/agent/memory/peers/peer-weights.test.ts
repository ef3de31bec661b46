/** A node loads from another node's memory: two real agents, each with a device worker. */
import { copyFileSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { ContentHashCache, rangeOfKey } from '../../../../agent/memory/content-hashes.ts';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { learnContents } from '../../../../agent/memory/learn-contents.ts';
import { heldSchema } from '../../../../agent/memory/peers/peer-messages.ts';
import { SessionIdentity } from '../../../../mesh/index.ts';
import type { AgentState } from '../../../../spec/agent-state.ts';
import { type DeviceReport, deviceReportSchema } from '../../../../spec/device-report.ts';
import type { SessionRecord } from '../../../../spec/session-record.ts';
import type { WeightSources } from '../../../../spec/weight-sources.ts';
import { agentPaths } from '../../../../spec/wire.ts';
import { eventually } from '../../../mesh/support.ts';
import { model } from '../../engine/support.ts';
import { type RunningAgent, Site, unitOf } from '../../support.ts';
import { forgetFile, keepInMemory } from '../page-cache.ts';
import { SlowReads } from './slow-reads.ts';

const deadline_ms = 60_000;
/** So that a load takes seconds, whatever the disk. */
const disk_bytes_per_s = 8e6;
/** The harness starts agents of one node: this one is of another, and reads slowly. */
const otherNode = ({ folder }: SlowReads): string[] => [
  '/bin/sh',
  '-c',
  'echo $$ >"$0" && exec "$1" "$2" "$3" "$4" "$5" n1',
  join(folder, 'cgroup.procs'),
];

const emulated = { emulated: 'cpu', device_model: 'A100', device_memory_bytes: 2 ** 30 } as const;

const probe = SlowReads.from(fileURLToPath(import.meta.url), disk_bytes_per_s);
const suite = probe ? describe : describe.skip;
probe?.[Symbol.dispose]();

const native = (name: string, model_path: string) =>
  unitOf({ name }, { engine: 'native', model_path, unit: `${name}-0`, weight_bytes: 120e6, kv_tokens: 256 });

/** The same in two stages, on devices of one node. */
function cutInTwo(name: string, model_path: string) {
  const stages = [
    { begin: 0, end: 9 },
    { begin: 9, end: 18 },
  ];
  const cut = { device_kind: 'gpu', device_count: 2, pipeline: 2, stages } as const;
  return { ...native(name, model_path), ...cut };
}

/** How the weights of both stages were loaded on the other node, as its agent writes down. */
function sourcesOf({ launch }: RunningAgent, name: string): Promise<WeightSources[]> {
  return eventually(
    () => {
      const { sessions } = JSON.parse(
        readFileSync(join(launch.launch_folder, 'n1.state.json'), 'utf8'),
      ) as AgentState;
      const sources = sessions.flatMap(({ loaded }) => loaded?.[name] ?? []);
      return sources.length === 2 ? sources : undefined;
    },
    'its agent to say how both stages were loaded',
    deadline_ms,
  );
}

/** A copy that no node has in memory, with hashes that a node of the site has taken before. */
async function coldCopy(site: Site, path: string, hashes: ContentHashCache): Promise<string> {
  const copy = join(site.folder, 'copy.gguf');
  copyFileSync(path, copy);
  await learnContents(hashes, copy);
  await forgetFile(copy);
  return copy;
}

async function reportOf(site: Site, record: SessionRecord): Promise<DeviceReport> {
  const { body } = await site.pool(record).request({ method: 'GET', path: agentPaths.device });
  return deviceReportSchema.parse(await body.json());
}

async function decisionsOf(site: Site, record: SessionRecord): Promise<string[]> {
  const { decisions } = await reportOf(site, record);
  return decisions.filter(({ kind }) => kind === 'load').map(({ because }) => because);
}

async function textOf(site: Site, record: SessionRecord, name: string): Promise<string> {
  const { statusCode, body } = await site.pool(record).request({
    method: 'POST',
    path: '/v1/completions',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: name,
      prompt: 'one two',
      max_tokens: 12,
      temperature: 0,
      ignore_eos: true,
    }),
  });
  const answer = await body.json();
  expect(statusCode, JSON.stringify(answer)).toBe(200);
  return (answer as { choices: { text: string }[] }).choices[0]!.text;
}

/** What a process has read so far, from wherever. */
function readBytes(pid: number): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))![1]);
}

interface Holding extends Disposable {
  holder: RunningAgent;
  first: SessionRecord;
  /** Of its model. */
  path: string;
  hashes: ContentHashCache;
  environment: Record<string, string>;
}

interface Scene extends Holding {
  copy: string;
  slow: SlowReads;
}

/** One node that serves a model and has it in memory. */
async function holding(site: Site, seed = 1): Promise<Holding> {
  const path = await model('small-llama', 'F32', seed);
  const cache = join(site.folder, 'cache');
  const environment = { XDG_CACHE_HOME: cache };
  const hashes = new ContentHashCache(join(cache, 'hpcserve', 'tensors'));
  await learnContents(hashes, path);
  const holder = await site.start([native('first', path)], {}, environment);
  const first = await site.serving('first', deadline_ms);
  // Peers are offered what the page cache has.
  const { [Symbol.dispose]: forget } = keepInMemory(path);
  return { holder, first, path, hashes, environment, [Symbol.dispose]: forget };
}

/** Such a node, and the file of another one that has not. */
async function scene(site: Site): Promise<Scene> {
  const held = await holding(site);
  const copy = await coldCopy(site, held.path, held.hashes);
  return { ...held, copy, slow: SlowReads.from(copy, disk_bytes_per_s)! };
}

/** A group of processes goes when the last of them has ended. */
async function end(agent: RunningAgent, slow: SlowReads): Promise<void> {
  await ended(agent, slow);
  slow[Symbol.dispose]();
}

async function ended(agent: RunningAgent, slow: SlowReads): Promise<void> {
  await agent.kill();
  await eventually(
    () => readFileSync(join(slow.folder, 'cgroup.procs'), 'utf8') === '' || undefined,
    'the processes of the node to have ended',
    deadline_ms,
  );
}

suite('a node that loads from another’s memory', () => {
  test('tensors that another node has in memory come from there, and answers are the same', async () => {
    await using site = await Site.open();
    using held = await scene(site);
    const { first, copy, slow, environment } = held;
    const text = await textOf(site, first, 'first');
    let load: string | undefined;
    // The first has its programs to read from the slow disk, too, maybe behind the whole file.
    for (const name of ['warm', 'second']) {
      await forgetFile(copy);
      const loader = await site.start([native(name, copy)], {}, environment, otherNode(slow));
      const second = await site.serving(name, deadline_ms);
      expect(second.metadata.node).toBe('n1');
      [load] = await decisionsOf(site, second);
      expect(await textOf(site, second, name)).toBe(text);
      await ended(loader, slow);
    }
    expect(load).toMatch(/ MB of them from the memory of n0($|;)/);
    slow[Symbol.dispose]();
  }, 180_000);

  test('a stage that is started elsewhere has its own tensors from there, and no others', async () => {
    await using site = await Site.open();
    using held = await scene(site);
    const { first, copy, slow, environment } = held;
    const text = await textOf(site, first, 'first');
    let came: RegExpExecArray | null | undefined;
    for (const name of ['warm', 'cut']) {
      await forgetFile(copy);
      const loader = await site.start([cutInTwo(name, copy)], emulated, environment, otherNode(slow));
      const second = await site.serving(name, deadline_ms);
      const [load] = await decisionsOf(site, second);
      came = /^0 MB were there, (\d+) MB came .* MB of them from the memory of n0($|;)/.exec(load!);
      expect(await textOf(site, second, name)).toBe(text);
      await ended(loader, slow);
    }
    expect(came).not.toBeNull();
    expect(Number(came![1])).toBeLessThan(0.7 * (statSync(copy).size / 1e6));
    slow[Symbol.dispose]();
  }, 180_000);

  test('a peer whose model of the same name is another one brings nothing to a stage of it', async () => {
    await using site = await Site.open();
    using held = await holding(site, 2);
    const { first, hashes, environment } = held;
    const copy = await coldCopy(site, await model('small-llama', 'F32'), hashes);
    const slow = SlowReads.from(copy, disk_bytes_per_s)!;
    const loader = await site.start([cutInTwo('first', copy)], emulated, environment, otherNode(slow));
    const second = await site.session(
      ({ metadata }) => metadata.node === 'n1' && metadata.models.some(({ state }) => state === 'serving'),
      deadline_ms,
    );
    for (const { from_nodes } of await sourcesOf(loader, 'first'))
      expect(from_nodes).not.toHaveProperty('n0');
    const text = await textOf(site, second, 'first');
    expect(text).not.toBe(await textOf(site, first, 'first'));
    await end(loader, slow);
    // By a node that has the file in memory.
    await site.start([native('same', await model('small-llama', 'F32'))], {}, environment);
    expect(await textOf(site, await site.serving('same', deadline_ms), 'same')).toBe(text);
  }, 120_000);

  test('a node whose peer is killed in mid-load reads its file on, and serves', async () => {
    await using site = await Site.open();
    using held = await scene(site);
    const { holder, first, copy, slow, environment } = held;
    const text = await textOf(site, first, 'first');
    const { pid: worker } = await reportOf(site, first);
    const before = readBytes(worker);
    const loader = await site.start([native('second', copy)], {}, environment, otherNode(slow));
    const loading = await site.session(
      ({ metadata }) => metadata.models.some(({ name }) => name === 'second'),
      deadline_ms,
    );
    // Two groups are on their way at once: when so much was read for them, one has come.
    await eventually(
      () => readBytes(worker) - before > 24e6 || undefined,
      'ranges of the file to be served',
      deadline_ms,
    );
    holder.process.kill('SIGKILL');
    const [load, ...others] = (await reportOf(site, loading)).loading;
    expect([load?.model, others]).toEqual(['second', []]);
    expect(load!.bytes_loaded).toBeLessThan(load!.bytes_total);
    const second = await site.serving('second', deadline_ms);
    expect(loader.process.exitCode).toBeNull();
    expect(await decisionsOf(site, second)).toEqual([
      expect.stringMatching(
        /, \d+ MB of them from the memory of n0; n0: (aborted|.*hang up|.*reset|.*bytes came|the answer was 502)(; past the page cache, which could not keep it)?; a thread: disk .*$/,
      ),
    ]);
    expect(await textOf(site, second, 'second')).toBe(text);
    await end(loader, slow);
  }, 120_000);

  test('stages whose peer is killed in mid-load read their file on, and serve', async () => {
    await using site = await Site.open();
    using held = await scene(site);
    const { holder, first, copy, slow, environment } = held;
    const text = await textOf(site, first, 'first');
    const { pid: worker } = await reportOf(site, first);
    const before = readBytes(worker);
    const loader = await site.start([cutInTwo('cut', copy)], emulated, environment, otherNode(slow));
    // Two groups of each stage are on their way at once: when so much was read for them, one has come.
    await eventually(
      () => readBytes(worker) - before > 48e6 || undefined,
      'ranges of the file to be served',
      deadline_ms,
    );
    holder.process.kill('SIGKILL');
    const second = await site.serving('cut', deadline_ms);
    const sources = await sourcesOf(loader, 'cut');
    const fromPeer = sources.reduce((sum, { from_nodes }) => sum + (from_nodes.n0 ?? 0), 0);
    expect(fromPeer).toBeGreaterThan(0);
    expect(fromPeer).toBeLessThan(sources.reduce((sum, { loaded_bytes }) => sum + loaded_bytes, 0));
    expect(sources.flatMap(({ troubles }) => troubles?.n0 ?? [])).toContainEqual(
      expect.stringMatching(/aborted|hang up|reset|bytes came|the answer was 502/),
    );
    expect(await textOf(site, second, 'cut')).toBe(text);
    await end(loader, slow);
  }, 120_000);

  test('where the site does not want it, the file alone is read', async () => {
    await using site = await Site.open();
    using held = await scene(site);
    const { copy, slow, environment } = held;
    const loader = await site.start(
      [native('second', copy)],
      { sharing: { peer_loads: false } },
      environment,
      otherNode(slow),
    );
    const second = await site.serving('second', deadline_ms);
    const [load] = await decisionsOf(site, second);
    expect(load).toMatch(
      / came in \d+ ms \(\d+ MB\/s\)(; past the page cache, which could not keep it)?; a thread: disk \d+ MB\/s of \d+ MB/,
    );
    await end(loader, slow);
  }, 120_000);
});

test('who is no member of the mesh is refused, and members get only what they can name', async () => {
  await using site = await Site.open();
  using held = await holding(site);
  const { first, path, hashes } = held;
  const pool = site.pool(first);
  const post = (contents: string[]) =>
    ({
      method: 'POST',
      path: agentPaths.tensors,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ contents }),
    }) as const;
  const get = (what: string) => ({ method: 'GET', path: `${agentPaths.tensors}${what}` }) as const;
  const unknown = 'A'.repeat(43);
  const [key, named] = [...hashes.read(fileVersion(path, statSync(path, { bigint: true })))!].at(-1)!;
  const { offset_bytes, size_bytes } = rangeOfKey(key);
  const range = `/${named}?offset=7&bytes=${size_bytes - 7}`;
  // The worker names its tensors once it serves.
  await eventually(
    async () => {
      const { statusCode, body } = await pool.request(post([unknown, named]));
      expect(statusCode).toBe(200);
      const { held } = heldSchema.parse(await body.json());
      expect([[], [1]]).toContainEqual(held);
      return held.length > 0 || undefined;
    },
    'the tensor to be named',
    deadline_ms,
  );
  const fetched = await pool.request(get(range));
  expect(fetched.statusCode).toBe(200);
  const tensor = readFileSync(path).subarray(offset_bytes, offset_bytes + size_bytes);
  expect(tensor.subarray(7).equals(Buffer.from(await fetched.body.arrayBuffer()))).toBe(true);
  for (const what of [
    `/${unknown}?offset=0&bytes=10`,
    `/${named}?offset=7&bytes=${size_bytes}`,
    '/..%2f..%2fetc%2fpasswd?offset=0&bytes=10',
    '/x',
  ]) {
    const answer = await pool.request(get(what));
    expect([what, answer.statusCode]).toEqual([what, 404]);
    await answer.body.dump();
  }
  Object.defineProperty(site.gateway, 'identity', { value: await SessionIdentity.create() });
  const strange = site.pool(first);
  for (const asked of [post([named]), get(range)]) {
    const { statusCode, body } = await strange.request(asked);
    expect(statusCode).toBe(403);
    expect(await body.json()).toMatchObject({ error: { code: 'E_MESH_PEER' } });
  }
}, 120_000);
