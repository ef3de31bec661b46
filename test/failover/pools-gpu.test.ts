/**
 * Prefill and decode pools where devices are GPUs, whose memory others cannot address: keys and values of prompts go
 * through memory of the host. Real agents and workers, on a Vulkan device and on a CPU.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { deviceReportSchema } from '../../spec/device-report.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { vulkanDevice } from '../engines/environments.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';
import { wideModel } from './wide-model.ts';

const { found, lacking } = vulkanDevice();
const prompt_tokens = 320;
const answer_tokens = 24;
/** Kernels are compiled on the cores that compute. */
const serving_ms = 90_000;
const timeout = 240_000;
/** A pool so small that a room of the host holds a part of the prompt. */
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

interface Replica {
  agent: RunningAgent;
  session: string;
}
let launched = 0;

/** A node of a job of its own with one device, once its worker serves. */
async function start(kind: 'cpu' | 'gpu', pool?: PoolName): Promise<Replica> {
  const locks = join(site.folder, `device-${launched++}`);
  mkdirSync(locks);
  const environment = { ...found!.environment, HPCSERVE_DEVICE_LOCKS: locks, HPCSERVE_DRAIN_S: '10' };
  const unit = unitOf(
    { name: 'm', batch_invariant: true, max_sequences: 2, prefill_chunk_tokens: 64 },
    { engine: 'native', model_path, context_tokens: 512, kv_tokens: 1024, device_kind: kind, pool },
  );
  const memory = { device_bytes, kv_bytes: 2 ** 22, share: 0.5 };
  const launch: Partial<LaunchSpec> = {
    native_library_dir: found!.library_dir,
    private_fabric: true,
    fabrics: [],
    emulated_step_ms: 60,
  };
  const agent = await site.start([kind === 'gpu' ? { ...unit, memory } : unit], launch, environment);
  const state = await agent.stateWhere(
    ({ sessions }) =>
      sessions.some(({ role, models }) => role === 'device-worker' && models[0]?.state === 'serving'),
    'an agent to serve',
    serving_ms,
  );
  return { agent, session: state.sessions.find(({ role }) => role === 'device-worker')!.session_id };
}

async function movesAt({ session }: Replica): Promise<MovesReport> {
  const told = (await (await gateway.admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  const { report } = told.devices.find((device) => device.session_id === session)!;
  return deviceReportSchema.parse(report).moves!;
}

/** @param first makes prompts of their own: what is in a cache would be found there */
async function answer(first: number): Promise<string> {
  const told = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'm',
      prompt: Array.from({ length: prompt_tokens }, (_, at) => (first + at * 7) % 200),
      max_tokens: answer_tokens,
      ignore_eos: true,
      temperature: 0,
    }),
  });
  const body = await told.text();
  expect(told.status, body).toBe(200);
  const { choices } = JSON.parse(body) as { choices: { text: string }[] };
  return choices[0]!.text;
}

describe.skipIf(found === undefined)(`pools on GPUs${lacking}`, () => {
  /** What one GPU alone says to two prompts. */
  let alone: string[] = [];
  let prefill: Replica;
  let decode: Replica;

  /** An answer goes from one pool to the other, its prompt in parts. @returns what it says */
  async function handedOver(first: number): Promise<string> {
    await gateway.untilServing('m', 2, serving_ms);
    const before = await movesAt(decode);
    // Until both have found the hash of their file, answers stay.
    await eventually(
      async () => {
        await answer(3);
        return (await movesAt(decode)).continued > before.continued || undefined;
      },
      'an answer to be handed over',
      60_000,
    );
    const [from, to] = [await movesAt(prefill), await movesAt(decode)];
    const text = await answer(first);
    const [left, came] = [await movesAt(prefill), await movesAt(decode)];
    expect(left.handovers).toMatchObject({ handed_over: from.handovers!.handed_over + 1 });
    expect(left.handovers!.early_tokens).toBeGreaterThan(from.handovers!.early_tokens);
    expect(left.peers.find(({ peer }) => peer === decode.session)).toMatchObject({ failures: 0 });
    expect(came).toMatchObject({ continued: to.continued + 1, missed: 0 });
    expect(came.continued_tokens - to.continued_tokens).toBeGreaterThanOrEqual(prompt_tokens);
    return text;
  }

  it(
    'an answer whose prompt a GPU has computed goes on at another GPU, as at one alone',
    async () => {
      const one = await start('gpu');
      await gateway.untilServing('m', 1, serving_ms);
      alone = [await answer(1), await answer(2)];
      await one.agent.kill();
      prefill = await start('gpu', 'prefill');
      decode = await start('gpu', 'decode');
      expect(await handedOver(1)).toBe(alone[0]);
    },
    timeout,
  );

  it(
    'and at a CPU, of which its first tokens are known',
    async () => {
      await decode.agent.kill();
      decode = await start('cpu', 'decode');
      const text = await handedOver(2);
      expect(text.slice(0, 1)).toBe(alone[1]!.slice(0, 1));
      expect(text.length).toBeGreaterThan(answer_tokens / 2);
    },
    timeout,
  );
});
