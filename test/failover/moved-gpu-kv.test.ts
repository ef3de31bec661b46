/**
 * Running answers leave a GPU with their keys and values, and come to one: its memory cannot be addressed by others, so
 * that rows go through memory of the host, a room at a time. Real agents and workers, on a Vulkan device.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { deviceReportSchema } from '../../spec/device-report.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { vulkanDevice } from '../engines/environments.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';
import { wideModel } from './wide-model.ts';

const { found, lacking } = vulkanDevice();
const prompt_tokens = 320;
const answer_tokens = 40;
/** Of an answer, before its node is told to end. */
const disturbed_after = 8;
/** Kernels are compiled on the cores that compute. */
const serving_ms = 90_000;
const timeout = 240_000;
/** A pool so small that rooms of the host hold a part of the prompt. */
const device_bytes = 2 ** 26;

let site: Site;
let gateway: SiteGateway;
let model_path = '';

beforeAll(async () => {
  site = await Site.open();
  model_path = await wideModel(site.folder);
  gateway = await gatewayOf(site, { continue_ms: 60_000 });
});
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

const launched: RunningAgent[] = [];

/** A node of a job of its own, which has a device of its own. */
async function start(kind: 'cpu' | 'gpu'): Promise<RunningAgent> {
  const locks = join(site.folder, `device-${launched.length}`);
  mkdirSync(locks);
  const environment = { ...found!.environment, HPCSERVE_DEVICE_LOCKS: locks, HPCSERVE_DRAIN_S: '60' };
  const unit = unitOf(
    { name: 'm', batch_invariant: true, max_sequences: 1 },
    { engine: 'native', model_path, context_tokens: 512, kv_tokens: 1024, device_kind: kind },
  );
  const memory = { device_bytes, kv_bytes: 2 ** 22, share: 0.5 };
  const launch: Partial<LaunchSpec> = {
    native_library_dir: found!.library_dir,
    private_fabric: true,
    fabrics: [],
    emulated_step_ms: 80,
  };
  const agent = await site.start([kind === 'gpu' ? { ...unit, memory } : unit], launch, environment);
  launched.push(agent);
  return agent;
}

async function workerOf(agent: RunningAgent): Promise<string> {
  const state = await agent.stateWhere(
    ({ sessions }) =>
      sessions.some(({ role, models }) => role === 'device-worker' && models[0]?.state === 'serving'),
    'an agent to serve',
    serving_ms,
  );
  return state.sessions.find(({ role }) => role === 'device-worker')!.session_id;
}

async function movesAt(session_id: string): Promise<MovesReport> {
  const told = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  const { report } = told.devices.find((device) => device.session_id === session_id)!;
  return deviceReportSchema.parse(report).moves!;
}

interface Reading {
  /** Who began it. */
  session: string;
  /** Resolves once some of it has come. */
  begun: Promise<void>;
  whole: Promise<string>;
  leave(): void;
}

async function ask(): Promise<Reading> {
  const leaves = new AbortController();
  const answer = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    signal: leaves.signal,
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'm',
      prompt: Array.from({ length: prompt_tokens }, (_, at) => (at * 7) % 200),
      max_tokens: answer_tokens,
      ignore_eos: true,
      temperature: 0,
      stream: true,
    }),
  });
  expect(answer.status, answer.ok ? '' : await answer.text()).toBe(200);
  let begin = (): void => undefined;
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const read = async (): Promise<string> => {
    let raw = '';
    for await (const part of answer.body!) {
      raw += Buffer.from(part).toString('utf8');
      if (raw.split('\n\n').length > disturbed_after) begin();
    }
    return textOf(raw);
  };
  const session = answer.headers.get('x-hpcserve-session')!;
  return { session, begun, whole: read(), leave: () => leaves.abort() };
}

function textOf(raw: string): string {
  expect(raw.match(/data: \[DONE\]/g)).toHaveLength(1);
  expect(/"error":.*/.exec(raw)?.[0]).toBeUndefined();
  const events = raw.split('\n\n').filter((event) => event.startsWith('data: {'));
  const choices = events.map(
    (event) => (JSON.parse(event.slice(6)) as { choices: { text: string }[] }).choices,
  );
  return choices.map(([choice]) => choice?.text ?? '').join('');
}

/** An answer that this worker has begun. Each has one place: where the other takes the first, it takes the second. */
async function askAt(session_id: string): Promise<Reading> {
  const first = await ask();
  if (first.session === session_id) return first;
  first.whole.catch(() => undefined);
  const second = await ask();
  first.leave();
  expect(second.session).toBe(session_id);
  return second;
}

describe.skipIf(found === undefined)(`answers of GPUs${lacking}`, () => {
  let here: RunningAgent;
  let undisturbed = '';

  /** The node ends in the middle of an answer, which goes on at another one. @returns its text */
  async function leavesFor(kind: 'cpu' | 'gpu'): Promise<string> {
    const from = here;
    const own = await workerOf(from);
    here = await start(kind);
    const to = await workerOf(here);
    await gateway.untilServing('m', 2, serving_ms);
    const reading = await askAt(own);
    await reading.begun;
    from.process.kill('SIGTERM');
    const text = await reading.whole;
    expect(await from.ended).toEqual({ code: 0, signal: null });
    await eventually(async () => (await gateway.serving('m')).length === 1 || undefined, 'one to be left');
    const state = await from.state();
    const sent = state?.sessions.find(({ role }) => role === 'device-worker')?.moves;
    expect(sent).toMatchObject({ moved: 1, recomputed: 0 });
    expect(sent!.peers).toMatchObject([{ peer: to, way: 'sendfile', failures: 0 }]);
    // A room holds less than the rows of the prompt.
    expect(sent!.peers[0]!.transfers).toBeGreaterThan(2);
    const came = await movesAt(to);
    expect(came).toMatchObject({ continued: 1, missed: 0 });
    expect(came.continued_tokens).toBeGreaterThanOrEqual(prompt_tokens);
    return text;
  }

  it(
    'are as those of one that stays, when they go on at another GPU',
    async () => {
      here = await start('gpu');
      await gateway.untilServing('m', 1, serving_ms);
      undisturbed = await (await ask()).whole;
      expect(undisturbed.length).toBeGreaterThan(answer_tokens / 2);
      expect(await leavesFor('gpu')).toBe(undisturbed);
    },
    timeout,
  );

  it(
    'go on at a CPU, and those of a CPU at a GPU',
    async () => {
      const began = undisturbed.slice(0, disturbed_after - 2);
      expect((await leavesFor('cpu')).startsWith(began)).toBe(true);
      expect((await leavesFor('gpu')).length).toBeGreaterThan(answer_tokens / 2);
    },
    timeout,
  );
});
