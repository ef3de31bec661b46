/** A node loads from another node's memory: two real agents, each with a device worker. */
import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { ContentHashCache } from '../../agent/memory/content-hashes.ts';
import { learnContents } from '../../agent/memory/learn-contents.ts';
import { deviceReportSchema } from '../../spec/device-report.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import { model } from '../engine/support.ts';
import { eventually } from '../mesh/fixtures.ts';
import { type RunningAgent, Site, unitOf } from './harness.ts';
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

const probe = SlowReads.from(fileURLToPath(import.meta.url), disk_bytes_per_s);
const suite = probe ? describe : describe.skip;
probe?.[Symbol.dispose]();

const native = (name: string, model_path: string) =>
  unitOf({ name }, { engine: 'native', model_path, unit: `${name}-0`, weight_bytes: 120e6, kv_tokens: 256 });

/** A copy that no node has in memory, with hashes that a node of the site has taken before. */
async function coldCopy(site: Site, path: string, hashes: ContentHashCache): Promise<string> {
  const copy = join(site.folder, 'copy.gguf');
  copyFileSync(path, copy);
  await learnContents(hashes, copy);
  await outOfMemory(copy);
  return copy;
}

/** Pages that a core has just had in hand stay for a moment. */
function outOfMemory(copy: string): Promise<unknown> {
  return eventually(
    () => {
      execFileSync('sync', [copy]);
      execFileSync('dd', [`if=${copy}`, 'iflag=nocache', 'count=0', 'status=none']);
      const resident = execFileSync('fincore', ['--bytes', '--noheadings', '--output=RES', copy]);
      return Number(resident) === 0 || undefined;
    },
    'the file to be out of memory',
    deadline_ms,
  );
}

async function decisionsOf(site: Site, record: SessionRecord): Promise<string[]> {
  const { body } = await site.pool(record).request({ method: 'GET', path: agentPaths.device });
  const { decisions } = deviceReportSchema.parse(await body.json());
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

interface Scene {
  site: Site;
  holder: RunningAgent;
  first: SessionRecord;
  copy: string;
  slow: SlowReads;
  environment: Record<string, string>;
}

/** One node that serves a model and has it in memory, and the file of another one that has not. */
async function scene(site: Site): Promise<Scene> {
  const path = await model('small-llama', 'F32');
  const cache = join(site.folder, 'cache');
  const environment = { XDG_CACHE_HOME: cache };
  const hashes = new ContentHashCache(join(cache, 'hpcserve', 'tensors'));
  await learnContents(hashes, path);
  const holder = await site.start([native('first', path)], {}, environment);
  const first = await site.serving('first', deadline_ms);
  const copy = await coldCopy(site, path, hashes);
  return { site, holder, first, copy, slow: SlowReads.from(copy, disk_bytes_per_s)!, environment };
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
    const { first, copy, slow, environment } = await scene(site);
    const text = await textOf(site, first, 'first');
    let load: string | undefined;
    // The first has its programs to read from the slow disk, too, maybe behind the whole file.
    for (const name of ['warm', 'second']) {
      await outOfMemory(copy);
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

  test('a node whose peer is killed in mid-load reads its file on, and serves', async () => {
    await using site = await Site.open();
    const { holder, first, copy, slow, environment } = await scene(site);
    const text = await textOf(site, first, 'first');
    const loader = await site.start([native('second', copy)], {}, environment, otherNode(slow));
    await eventually(
      () =>
        site.registry
          .snapshot()
          .find(({ metadata }) => metadata.models.some(({ name }) => name === 'second')),
      'a session of the node that loads',
      deadline_ms,
    );
    holder.process.kill('SIGKILL');
    const second = await site.serving('second', deadline_ms);
    expect(loader.process.exitCode).toBeNull();
    expect(await textOf(site, second, 'second')).toBe(text);
    await end(loader, slow);
  }, 120_000);

  test('where the site does not want it, the file alone is read', async () => {
    await using site = await Site.open();
    const { copy, slow, environment } = await scene(site);
    const loader = await site.start(
      [native('second', copy)],
      { sharing: { peer_loads: false } },
      environment,
      otherNode(slow),
    );
    const second = await site.serving('second', deadline_ms);
    const [load] = await decisionsOf(site, second);
    expect(load).toMatch(/ came in \d+ ms \(\d+ MB\/s\)$/);
    await end(loader, slow);
  }, 120_000);

  test('who is no member of the mesh is asked for nothing, and members get only what they can name', async () => {
    await using site = await Site.open();
    const { first, slow } = await scene(site);
    slow[Symbol.dispose]();
    const pool = site.pool(first);
    const unknown = 'A'.repeat(43);
    const asked = await pool.request({
      method: 'POST',
      path: agentPaths.tensors,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ contents: [unknown] }),
    });
    expect([asked.statusCode, await asked.body.json()]).toEqual([200, { held: [] }]);
    for (const path of [`/${unknown}?offset=0&bytes=10`, '/..%2f..%2fetc%2fpasswd?offset=0&bytes=10', '/x']) {
      const answer = await pool.request({ method: 'GET', path: `${agentPaths.tensors}${path}` });
      expect([path, answer.statusCode]).toEqual([path, 404]);
      await answer.body.dump();
    }
  }, 120_000);
});
