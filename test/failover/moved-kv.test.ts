/**
 * Running answers leave a node that ends, with their keys and values: real agents and workers, and a gateway before
 * them. What clients get is what they get of an undisturbed run, and the prompt is not computed again.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ContentHashCache } from '../../agent/memory/content-hashes.ts';
import { fileVersion } from '../../agent/memory/file-version.ts';
import { fabricAbsence } from '../../native/fabric/fabric.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { deviceReportSchema } from '../../spec/device-report.ts';
import { sharedDeviceViewSchema } from '../../spec/device-view.ts';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import { cache_home, type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const prompt_tokens = 300;
const answer_tokens = 160;
/** Of an answer, before its node is told to end: most of it is still to come. */
const disturbed_after = 30;

let site: Site;
let gateway: SiteGateway;
const paths: Record<'model' | 'other', string> = { model: '', other: '' };
let undisturbed = '';

beforeAll(async () => {
  site = await Site.open();
  for (const [seed, name] of (['model', 'other'] as const).entries()) {
    paths[name] = join(site.folder, `${name}.gguf`);
    const shape = synthPresets['tiny-llama']!;
    await synthesize({ path: paths[name], shape, quantization: 'F16', seed: seed + 1 });
  }
  gateway = await gatewayOf(site, { continue_ms: 20_000 });
}, 60_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

function native(change: Partial<UnitSpec> = {}, max_sequences = 4): UnitSpec {
  return unitOf(
    { name: 'm', batch_invariant: true, max_sequences },
    { engine: 'native', model_path: paths.model, context_tokens: 1024, kv_tokens: 4096, ...change },
  );
}

/** A node of a job of its own; its answers take so long that none is over before all that is to happen to it. */
async function start(
  units: UnitSpec[] = [native()],
  launch: Partial<LaunchSpec> = {},
  drain_s = '10',
  prefix: readonly string[] = [],
): Promise<RunningAgent> {
  const environment = { HPCSERVE_DRAIN_S: drain_s };
  const agent = await site.start(units, { emulated_step_ms: 20, ...launch }, environment, prefix);
  all.push(agent);
  return agent;
}
const all: RunningAgent[] = [];
/** On a host of another name, as another node is. */
const on_another_host = [
  ...['unshare', '--map-root-user', '--uts', '--', 'sh', '-c'],
  'hostname elsewhere && exec "$0" "$@"',
];

const workersIn = ({ sessions }: AgentState) => sessions.filter(({ role }) => role === 'device-worker');

/** Its workers, once all of them serve. */
async function workersOf(agent: RunningAgent, count = 1): Promise<string[]> {
  const isServing = (now: AgentState): boolean =>
    workersIn(now).filter(({ models }) => models[0]?.state === 'serving').length === count;
  const state = await agent.stateWhere(isServing, 'an agent to serve', 30_000);
  return workersIn(state).map(({ session_id }) => session_id);
}

async function workerOf(agent: RunningAgent): Promise<string> {
  return (await workersOf(agent))[0]!;
}

async function movesAt(session_id: string): Promise<MovesReport> {
  const told = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  const { report } = told.devices.find((device) => device.session_id === session_id)!;
  return deviceReportSchema.parse(report).moves!;
}

/** What the agent wrote down last of a worker. */
async function movesOf(agent: RunningAgent): Promise<MovesReport | undefined> {
  const state = await agent.state();
  return state && workersIn(state)[0]?.moves;
}

interface Reading {
  /** Who began it. */
  session: string;
  /** Resolves once so many events have come. */
  after(events: number): Promise<void>;
  whole: Promise<string>;
}

function asked(change: Record<string, unknown>): Promise<Response> {
  return fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'm',
      prompt: Array.from({ length: prompt_tokens }, (_, at) => (at * 7) % 200),
      max_tokens: answer_tokens,
      ignore_eos: true,
      temperature: 0,
      stream: true,
      ...change,
    }),
  });
}

/** Tokens of its longest answer. */
async function generatedAt(agent: RunningAgent): Promise<number> {
  const worker = await site.session(isWorker(await workerOf(agent)));
  const { body } = await site.pool(worker).request({ method: 'GET', path: agentPaths.sharing });
  const { instances } = sharedDeviceViewSchema.parse(await body.json());
  const running = instances.flatMap(({ requests }) => requests);
  return Math.max(0, ...running.map(({ output_tokens }) => output_tokens));
}

async function ask(change: Record<string, unknown> = {}): Promise<Reading> {
  const answer = await asked(change);
  expect(answer.status, answer.ok ? '' : await answer.text()).toBe(200);
  let text = '';
  let tell = (): void => undefined;
  const read = async (): Promise<string> => {
    for await (const part of answer.body!) {
      text += Buffer.from(part).toString('utf8');
      tell();
    }
    return textOf(text);
  };
  const whole = read();
  const after = (events: number): Promise<void> =>
    new Promise((resolve) => {
      tell = () => {
        if (text.split('\n\n').length > events) resolve();
      };
      tell();
    });
  return { session: answer.headers.get('x-hpcserve-session')!, after, whole };
}

/** Text of each choice, each once and whole. */
function textOf(raw: string): string {
  expect(raw.match(/data: \[DONE\]/g)).toHaveLength(1);
  expect(raw).not.toContain('hpcserve_');
  expect(/"error":.*/.exec(raw)?.[0]).toBeUndefined();
  const texts: string[] = [];
  for (const event of raw.split('\n\n')) {
    if (!event.startsWith('data: {')) continue;
    const [choice] = (JSON.parse(event.slice(6)) as { choices: { index: number; text: string }[] }).choices;
    if (choice) texts[choice.index] = (texts[choice.index] ?? '') + choice.text;
  }
  return texts.join('|');
}

const isWorker = (id: string) => (record: SessionRecord) => record.session_id === id;

async function left(agent: RunningAgent): Promise<MovesReport | undefined> {
  expect(await agent.ended).toEqual({ code: 0, signal: null });
  await eventually(async () => (await gateway.serving('m')).length === 1 || undefined, 'one to be left');
  return movesOf(agent);
}

describe('answers of a node that ends', () => {
  let here: RunningAgent;

  it('are as those of a node that stays', async () => {
    here = await start();
    await gateway.untilServing('m', 1, 45_000);
    undisturbed = await (await ask()).whole;
    expect(undisturbed.length).toBeGreaterThan(answer_tokens / 2);
    // What moving costs is told to those who plan moves, once the file is hashed: supposed, before there was any.
    await hashed(paths.model);
    const worker = await site.session(isWorker(await workerOf(here)));
    await eventually(async () => {
      const { body } = await site.pool(worker).request({ method: 'GET', path: agentPaths.sharing });
      const [instance] = sharedDeviceViewSchema.parse(await body.json()).instances;
      return instance?.kv_moves && { ...instance.kv_moves };
    }, 'it to say what moving costs').then((costs) =>
      expect(costs).toEqual({ bytes_per_s: 250e6, latency_ms: 250 }),
    );
  }, 90_000);

  async function goesOnBy(
    _way: string,
    launch: Partial<LaunchSpec>,
    way: string,
    peer: Partial<MovesReport['peers'][number]>,
    prefix: readonly string[] = [],
  ): Promise<void> {
    // Opening a fabric takes seconds where other tests run beside this one: the answer would take 20 s to its end here.
    const from = await start([native()], { emulated_step_ms: 150, ...launch }, '25', prefix);
    // Both ends are as the case has it: the one that is left over from the case before goes first.
    await workerOf(from);
    here.process.kill('SIGTERM');
    await here.ended;
    await gateway.untilServing('m', 1, 45_000);
    const reading = await ask();
    expect(reading.session).toBe(await workerOf(from));
    here = await start([native()], launch);
    const to = await workerOf(here);
    await gateway.untilServing('m', 2, 45_000);
    await reading.after(disturbed_after);
    from.process.kill('SIGTERM');
    expect(await reading.whole).toBe(undisturbed);
    const sent = await left(from);
    expect(sent).toMatchObject({ moved: 1, recomputed: 0 });
    expect(sent!.peers).toMatchObject([{ peer: to, way, failures: 0, ...peer }]);
    expect(sent!.peers[0]!.bytes).toBeGreaterThan(prompt_tokens * 64);
    const came = await movesAt(to);
    expect(came).toMatchObject({ continued: 1, missed: 0 });
    expect(came.continued_tokens).toBeGreaterThanOrEqual(prompt_tokens + disturbed_after - 5);
  }

  type Way = Parameters<typeof goesOnBy>;
  const title = 'go on elsewhere by %s, and nothing is computed twice';
  it.skipIf(fabricAbsence() !== undefined).each<Way>([
    ['libfabric', { private_fabric: true, fabrics: ['shm'] }, 'rma (shm)', { fallbacks: 0 }],
    [
      'sendfile, where the fabric that is announced does not work',
      { private_fabric: true, fabrics: ['no-such-fabric'] },
      'sendfile',
      { fallbacks: 1, last_fallback: expect.stringContaining('no-such-fabric') },
    ],
  ])(title, goesOnBy, 120_000);
  it.each<Way>([
    ['sendfile', { private_fabric: true, fabrics: [] }, 'sendfile', { fallbacks: 0 }],
    ['TLS, from another node', {}, 'tcp, encrypted', { fallbacks: 0 }, on_another_host],
    ['sendfile within a node, where the network is not private', {}, 'sendfile', { fallbacks: 0 }],
  ])(title, goesOnBy, 120_000);

  it('go on with all of their choices', async () => {
    const whole = await (await ask({ n: 2, temperature: 1, seed: 7 })).whole;
    const to = await start();
    const id = await workerOf(to);
    await gateway.untilServing('m', 2, 45_000);
    const reading = await ask({ n: 2, temperature: 1, seed: 7 });
    await reading.after(disturbed_after);
    const [from, other] = reading.session === id ? [to, here] : [here, to];
    const before = (await movesAt(await workerOf(other))).continued;
    from.process.kill('SIGTERM');
    expect(await reading.whole).toBe(whole);
    expect(await left(from)).toMatchObject({ moved: 1, recomputed: 0 });
    expect(await movesAt(await workerOf(other))).toMatchObject({
      continued: before + 2,
      missed: 0,
    });
    here = other;
  }, 120_000);

  it('that come whole go on elsewhere, and are whole there', async () => {
    const to = await start();
    await workerOf(to);
    await gateway.untilServing('m', 2, 45_000);
    const agents = [here, to];
    const answer = asked({ stream: false });
    const from = await eventually(async () => {
      for (const agent of agents) if ((await generatedAt(agent)) >= disturbed_after) return agent;
      return undefined;
    }, 'some of it to be there');
    const other = agents.find((agent) => agent !== from)!;
    const before = await movesAt(await workerOf(other));
    from.process.kill('SIGTERM');
    const whole = (await (await answer).json()) as { choices: { text: string }[]; usage: unknown };
    expect(whole.choices[0]!.text).toBe(undisturbed);
    expect(whole.usage).toMatchObject({ prompt_tokens, completion_tokens: answer_tokens });
    expect(await left(from)).toMatchObject({ moved: 1, recomputed: 0 });
    const came = await movesAt(await workerOf(other));
    expect(came).toMatchObject({ continued: before.continued + 1, missed: 0 });
    expect(came.continued_tokens - before.continued_tokens).toBeGreaterThanOrEqual(
      prompt_tokens + disturbed_after - 5,
    );
    here = other;
  }, 120_000);

  it('go to the other device of a node', async () => {
    const two = await start([native(), native({ unit: 'm-1', first_device: 1 })], {
      cpu_devices_per_node: 2,
    });
    const workers = await workersOf(two, 2);
    here.process.kill('SIGTERM');
    await here.ended;
    await gateway.untilServing('m', 2, 45_000);
    const reading = await ask();
    await reading.after(disturbed_after);
    const from = await site.session(isWorker(reading.session));
    const other = workers.find((id) => id !== reading.session)!;
    const drained = await site.pool(from).request({ method: 'POST', path: agentPaths.drain });
    expect(drained.statusCode).toBe(202);
    expect(await reading.whole).toBe(undisturbed);
    expect(await movesAt(other)).toMatchObject({ continued: 1, missed: 0 });
    here = two;
  }, 120_000);
});

/** Until this version of a model file was hashed: keys and values of its answers move from then on. */
async function hashed(path: string): Promise<void> {
  const cache = new ContentHashCache(join(cache_home, 'hpcserve/tensors'));
  const version = fileVersion(path, statSync(path, { bigint: true }));
  await eventually(() => cache.read(version), `${path} to be hashed`);
}

interface Begun {
  from: RunningAgent;
  reading: Reading;
}

describe('where keys and values cannot move, an answer', () => {
  const agents: RunningAgent[] = [];

  /** One that serves alone, and an answer that it has begun. */
  async function begun(drain_s = '10', max_tokens = answer_tokens, places = 4): Promise<Begun> {
    const from = await start([native({}, places)], { private_fabric: true }, drain_s);
    const own = await workerOf(from);
    for (const { process } of agents.splice(0)) process.kill('SIGKILL');
    await eventually(async () => {
      const serving = await gateway.serving('m');
      return (serving.length === 1 && serving[0]!.session_id === own) || undefined;
    }, 'it to be alone');
    agents.push(from);
    const reading = await ask({ max_tokens });
    await reading.after(disturbed_after);
    return { from, reading };
  }

  it('is refused by a replica of another model file, and goes on there from its tokens', async () => {
    agents.push(...all);
    // Long enough for the other to be started, and to have hashed its file.
    const { from, reading } = await begun('10', 500);
    const other = await start([native({ model_path: paths.other })], { private_fabric: true });
    agents.push(other);
    const id = await workerOf(other);
    await hashed(paths.other);
    await gateway.untilServing('m', 2, 45_000);
    from.process.kill('SIGTERM');
    await reading.whole;
    await from.ended;
    expect(await movesOf(from)).toMatchObject({ moved: 0, recomputed: 1 });
    const log = (await from.engineLog('m-0')).join('\n');
    expect(log).toContain('E_KV_FORMAT');
    expect(log).toMatch(/model is [0-9a-f]{64} there and [0-9a-f]{64} here/);
    expect(await movesAt(id)).toMatchObject({ continued: 0, continued_tokens: 0 });
  }, 120_000);

  it('goes on from its tokens where the other has no place, and with its KV where one of two is dead', async () => {
    const { from, reading } = await begun('1', 500, 1);
    const full = await start([native({}, 1)], { private_fabric: true });
    agents.push(full);
    const id = await workerOf(full);
    await gateway.untilServing('m', 2, 45_000);
    // It takes the next one, since the other is full, and has no place then.
    const busy = await ask({ max_tokens: 120 });
    expect(busy.session).toBe(id);
    from.process.kill('SIGTERM');
    expect((await reading.whole).startsWith(undisturbed)).toBe(true);
    await busy.whole;
    await from.ended;
    expect(await movesOf(from)).toMatchObject({ moved: 0, recomputed: 1 });
    expect((await movesOf(from))!.last_because).toContain('nobody who serves m has room for it');
    expect(await movesAt(id)).toMatchObject({ continued: 0 });
  }, 120_000);

  it('goes to the next where one is dead', async () => {
    for (const { process } of agents.splice(0)) process.kill('SIGKILL');
    const three = await Promise.all([start(), start(), start()]);
    agents.push(...three);
    const ids = await Promise.all(three.map((agent) => workerOf(agent)));
    await gateway.untilServing('m', 3, 45_000);
    const reading = await ask();
    await reading.after(disturbed_after);
    const from = three[ids.indexOf(reading.session)]!;
    const [dead, next] = three.filter((agent) => agent !== from);
    const pid = await dead!.pidOf({ session_id: await workerOf(dead!) });
    dead!.process.kill('SIGKILL');
    process.kill(pid, 'SIGKILL');
    from.process.kill('SIGTERM');
    expect(await reading.whole).toBe(undisturbed);
    await from.ended;
    expect(await movesOf(from)).toMatchObject({ moved: 1 });
    expect(await movesAt(await workerOf(next!))).toMatchObject({ continued: 1, missed: 0 });
    agents.splice(0, 3, next!);
  }, 120_000);
});

it('a node is emptied by its name, and its agents end', async () => {
  const unknown = await gateway.admin('/hpcserve/v1/nodes/nowhere/drain', { method: 'POST', body: '{}' });
  expect(unknown.status).toBe(404);
  expect(await unknown.text()).toContain('agents run on n0');
  const alive = all.filter(({ process }) => process.exitCode === null && process.signalCode === null);
  expect(alive.length).toBeGreaterThan(0);
  const drained = await gateway.admin('/hpcserve/v1/nodes/n0/drain', { method: 'POST', body: '{}' });
  expect(drained.status, drained.ok ? '' : await drained.text()).toBe(200);
  const told = (await drained.json()) as { agents: { session_id: string }[]; unreachable: unknown[] };
  // Those that were killed by the tests before are still in the mesh, and do not keep the others.
  expect(told.agents).toHaveLength(alive.length);
  expect(told.unreachable.length).toBeGreaterThan(0);
  for (const { ended } of alive) expect(await ended).toEqual({ code: 0, signal: null });
  await eventually(async () => {
    const left = (await (await gateway.admin('/hpcserve/v1/nodes/n0/agents')).json()) as { agents: string[] };
    return told.agents.every(({ session_id }) => !left.agents.includes(session_id)) || undefined;
  }, 'the drained to be gone');
}, 60_000);
