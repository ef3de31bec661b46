/**
 * A GPU that is lost in the middle of an answer: its worker ends, and who reads the answer gets the rest of it from
 * another replica, at the letter. Real agents, workers and a gateway, on a Vulkan device.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { type RunningAgent, Site, unitOf } from '../agent/support.ts';
import { vulkanDevice } from '../engines/environments.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';

const { found, lacking } = vulkanDevice();
const deviceLost = fileURLToPath(new URL('../agent/node/device-lost.c', import.meta.url));
const answer_tokens = 40;
/** Of an answer, before its device is lost. */
const lost_after = 8;
/** Kernels are compiled on the cores that compute. */
const serving_ms = 90_000;

let site: Site;
let gateway: SiteGateway;
let model_path = '';
/** The device of the first agent is lost once this file is there. */
let lost = '';

beforeAll(async () => {
  site = await Site.open();
  lost = join(site.folder, 'lost');
  model_path = join(site.folder, 'model.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  gateway = await gatewayOf(site, { continue_ms: 60_000 });
});
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

/** A node of a job of its own, which has a device of its own and takes one request at a time. */
async function start(name: string, preload: Record<string, string> = {}): Promise<RunningAgent> {
  const locks = join(site.folder, `locks-${name}`);
  mkdirSync(locks);
  const memory = { device_bytes: 2 ** 26, kv_bytes: 2 ** 20, share: 0.1 };
  const unit = unitOf(
    { name: 'm', batch_invariant: true, max_sequences: 1 },
    { engine: 'native', model_path, context_tokens: 512, kv_tokens: 512, device_kind: 'gpu', memory },
  );
  return await site.start(
    [unit],
    { native_library_dir: found!.library_dir, emulated_step_ms: 80 },
    { ...found!.environment, ...preload, HPCSERVE_DEVICE_LOCKS: locks },
  );
}

interface Reading {
  /** Who began it. */
  session: string;
  text: string;
  /** Reads on until so many pieces of text are there, or to its end. */
  read(pieces?: number): Promise<string>;
  leave(): void;
}

async function ask(client: OpenAI): Promise<Reading> {
  const leaves = new AbortController();
  const { data, response } = await client.completions
    .create(
      {
        model: 'm',
        prompt: Array.from({ length: 20 }, (_, at) => (at * 7) % 200),
        max_tokens: answer_tokens,
        temperature: 0,
        stream: true,
      },
      { signal: leaves.signal },
    )
    .withResponse();
  const events = data[Symbol.asyncIterator]();
  const reading: Reading = {
    session: response.headers.get('x-hpcserve-session')!,
    text: '',
    read: async (pieces = Number.POSITIVE_INFINITY) => {
      for (let count = 0; count < pieces; count++) {
        const { done, value } = await events.next();
        if (done) break;
        reading.text += value.choices[0]?.text ?? '';
      }
      return reading.text;
    },
    leave: () => leaves.abort(),
  };
  return reading;
}

describe.skipIf(found === undefined)(`an answer whose GPU is lost${lacking}`, () => {
  it('goes on at another replica at the letter, and its worker says what happened', async () => {
    const library = join(site.folder, 'device-lost.so');
    execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, deviceLost]);
    const first = await start('first', { LD_PRELOAD: `${library}:libvulkan.so.1`, DEVICE_LOST: lost });
    const { session_id } = await site.serving('m', serving_ms);
    await gateway.untilServing('m', 1, serving_ms);
    const client = gateway.client();
    const undisturbed = await (await ask(client)).read();
    expect(undisturbed.length).toBeGreaterThan(answer_tokens / 2);

    await start('second');
    await gateway.untilServing('m', 2, serving_ms);
    // Each takes one: where the other has the first, the one whose device goes has the second.
    const readings = [await ask(client), await ask(client)];
    const reading = readings.find(({ session }) => session === session_id)!;
    readings.find((other) => other !== reading)!.leave();
    expect(undisturbed.startsWith(await reading.read(lost_after))).toBe(true);
    expect(reading.text.length).toBeLessThan(undisturbed.length);
    writeFileSync(lost, '');
    expect(await reading.read()).toBe(undisturbed);
    expect(await gateway.continuations()).toBe(1);
    expect((await first.ended).code).not.toBe(0);
    expect(JSON.stringify(await first.state())).toMatch(/E_AGENT_WORKER.*the device is gone: .*DeviceLost/);
    expect((await gateway.serving('m')).map((row) => row.session_id)).not.toContain(session_id);
  }, 300_000);
});
