/**
 * A model that its neighbour on the device keeps from growing: where the neighbour's request fits elsewhere it goes
 * there, whoever reads its stream does not see it, and the newcomer is let in; where it does not fit, nobody is moved.
 */
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { type DeviceReport, deviceReportSchema } from '../../spec/device-report.ts';
import { sharedDeviceViewSchema } from '../../spec/device-view.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { WorkerHarness } from '../agent/device-worker/support.ts';
import { limit_ms, slow_device, start_ms, test_device } from '../agent/engine/test-backend.ts';
import { Site, unitOf } from '../agent/support.ts';
import { eventually } from '../mesh/support.ts';

/** A slow device computes three tenths of it: on devices, requests are little less than whole slabs of 256 tokens. */
const tokens = (count: number): number => (slow_device ? Math.ceil(0.3 * count) : count);
/** Answers are so long that none ends by itself before all is over. */
const lengths = {
  large: { prompt_tokens: tokens(1300), answer_tokens: tokens(400) },
  small: { prompt_tokens: tokens(20), answer_tokens: tokens(1800) },
};
/**
 * Of so many that all else is little beside KV: results of graphs, which are more where a profile is measured and not
 * known from before, and huge pages, of which pools of a host have whole ones.
 */
const n_layer = test_device === undefined && slow_device ? 16 : 8;
const shape = { ...synthPresets['tiny-llama']!, n_layer };
/**
 * What `small` needs at least (2048), and two requests of `large` (two times 1556 to 1700), but not three; without
 * `small` there is room for three. In the middle between both; on a device these are 22 slabs, and 7 where it is slow.
 */
const kv_tokens = tokens(6100);
/** Sizes that pools of a host have. */
const huge_page_bytes = 2 * 2 ** 20;
const options = { context_tokens: tokens(2048), kv_tokens: tokens(16_384), prefill_chunk_tokens: 128 };
type Model = keyof typeof lengths;
const sequences: Record<Model, number> = { large: 8, small: 1 };
let site: Site;
let gateway: RunningGateway;
let key = '';
/** Answers of workers that have nothing else to do. */
let [smallAlone, largeAlone] = ['', ''];
const logged: string[] = [];

beforeAll(async () => {
  site = await Site.open();
  const unit = async (name: Model): Promise<UnitSpec> => {
    const model_path = modelPath(name);
    const max_sequences = sequences[name];
    await synthesize({ path: model_path, shape, quantization: 'F16', seed: max_sequences });
    return unitOf(
      { name, batch_invariant: true, max_sequences, slo: { ttft_ms: 60_000, tpot_ms: 5000 } },
      { engine: 'native', model_path, ...options },
    );
  };
  const [large, small] = await Promise.all([unit('large'), unit('small')]);
  const { answers, pool_bytes } = await alone();
  [smallAlone, largeAlone] = answers;
  const sharing = { pool_gb: pool_bytes / 1e9 };
  // Slow enough that answers of `large` last 16 s, also where other tests have the cores.
  const pace = { emulated_step_ms: 40 };
  await Promise.all([site.start([large, small], { ...pace, sharing }), site.start([small], pace)]);
  gateway = await startGateway(
    {
      format: 1,
      site: 'local',
      provider: site.provider.name,
      provider_key_file: site.provider_key_file,
      host: '127.0.0.1',
      port: 0,
      mesh_folder: site.mesh_folder,
      gateway_folder: join(site.folder, 'gateway'),
      deployments_folder: join(site.folder, 'deployments'),
    },
    {
      log: pino({ level: 'info' }, { write: (line: string) => void logged.push(line) }),
      times: { poll_ms: 50, drain_ms: 2000, continue_ms: 20_000, defragment_ms: 3_600_000 },
    },
  );
  const made = await admin('/hpcserve/v1/keys', { method: 'POST', body: JSON.stringify({ name: 'tester' }) });
  key = ((await made.json()) as { key: string }).key;
}, limit_ms(60_000));
afterAll(async () => {
  await gateway?.close();
  await site?.[Symbol.asyncDispose]();
});

function admin(path: string, init: RequestInit = {}): Promise<Response> {
  return fetch(gateway.endpoint.url + path, {
    ...init,
    headers: { authorization: `Bearer ${gateway.admin_token}`, 'content-type': 'application/json' },
  });
}

async function devices(): Promise<{ session_id: string; report: DeviceReport }[]> {
  const told = (await (await admin('/hpcserve/v1/devices')).json()) as {
    devices: { session_id: string; report?: unknown }[];
  };
  return told.devices.map(({ session_id, report }) => ({
    session_id,
    report: deviceReportSchema.parse(report),
  }));
}

/** Models that the gateway knows to serve, of all devices. */
async function serving(): Promise<number> {
  const { sessions } = (await (await admin('/hpcserve/v1/table')).json()) as {
    sessions: { models: { state: string }[] }[];
  };
  return sessions.flatMap(({ models }) => models).filter(({ state }) => state === 'serving').length;
}

async function deviceOf(session_id: string): Promise<DeviceReport> {
  return (await devices()).find((device) => device.session_id === session_id)!.report;
}

function modelPath(name: Model): string {
  return join(site.folder, `${name}.gguf`);
}

function asked(model: Model, seed: number): Record<string, unknown> {
  const { prompt_tokens, answer_tokens } = lengths[model];
  return {
    model,
    prompt: Array.from({ length: prompt_tokens }, (_, at) => (at * 7 + seed) % 200),
    max_tokens: answer_tokens,
    min_tokens: answer_tokens,
    temperature: 0.8,
    seed,
    stream: true,
  };
}

function textOf(events: readonly { choices: { text: string }[] }[]): string {
  return events.map(({ choices }) => choices[0]!.text).join('');
}

/** Whole answers of a worker that has nothing else to do, and a pool for what its models have, with so much KV. */
async function alone(): Promise<{ answers: [small: string, large: string]; pool_bytes: number }> {
  const worker = new WorkerHarness();
  const answerTo = async (model: Model, seed: number): Promise<string> =>
    textOf(await worker.stream('/v1/completions', asked(model, seed)));
  try {
    await worker.configure();
    for (const name of ['large', 'small'] as const) {
      const max_sequences = sequences[name];
      await worker.load({
        name,
        model_path: modelPath(name),
        batch_invariant: true,
        max_sequences,
        ...options,
      });
    }
    const answers: [string, string] = [await answerTo('small', 1), await answerTo('large', 3)];
    // As many at once as there are beside `small`.
    await Promise.all([answerTo('large', 1), answerTo('large', 2)]);
    const { status, text } = await worker.request('GET', '/hpcserve/v1/sharing');
    expect(status, text).toBe(200);
    const { instances } = sharedDeviceViewSchema.parse(JSON.parse(text));
    expect(instances).toHaveLength(2);
    let bytes = kv_tokens * instances[0]!.kv_bytes_per_token;
    for (const { weight_bytes, working_bytes } of instances) {
      expect(working_bytes).toBeGreaterThan(0);
      bytes += weight_bytes + working_bytes!;
    }
    const page_bytes = test_device === undefined ? huge_page_bytes : 1;
    return { answers, pool_bytes: page_bytes * Math.round(bytes / page_bytes) };
  } finally {
    await worker.close();
  }
}

/** A stream over the gateway, from its head on, that is read while it comes. */
class Asked {
  readonly status: number;
  readonly headers: Headers;
  /** Of the answer, as far as it is there; of a refusal, its body. */
  text = '';
  #failed: Error | undefined;
  readonly #leaves: AbortController;

  private constructor(answer: Response, leaves: AbortController) {
    this.status = answer.status;
    this.headers = answer.headers;
    this.#leaves = leaves;
    void this.#read(answer).catch((error: Error) => {
      this.#failed = error;
    });
  }

  static async of(model: Model, seed: number): Promise<Asked> {
    const leaves = new AbortController();
    const answer = await fetch(`${gateway.endpoint.url}/v1/completions`, {
      method: 'POST',
      signal: leaves.signal,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(asked(model, seed)),
    });
    return new Asked(answer, leaves);
  }

  get session(): string {
    return this.headers.get('x-hpcserve-session')!;
  }

  /** Until there is so much text. */
  async until(length: number): Promise<string> {
    return eventually(
      () => {
        if (this.#failed) throw this.#failed;
        return this.text.length >= length ? this.text : undefined;
      },
      `${length} characters of an answer`,
      limit_ms(30_000),
    );
  }

  leave(): void {
    this.#leaves.abort();
  }

  async #read(answer: Response): Promise<void> {
    let rest = '';
    for await (const chunk of answer.body!.pipeThrough(new TextDecoderStream())) {
      if (this.status !== 200) this.text += chunk;
      else {
        const events = (rest + chunk).split('\n\n');
        rest = events.pop()!;
        // Anything but a chunk of the answer fails here.
        this.text += textOf(events.map((event) => JSON.parse(event.replace(/^data: /, ''))));
      }
    }
  }
}

it(
  'takes the place of a smaller neighbour whose stream fits elsewhere, and leaves it alone where it does not',
  async () => {
    const crowded = await eventually(
      async () => {
        const now = await devices().catch(() => []);
        return (await serving()) === 3 ? now.find(({ report }) => report.instances.length === 2) : undefined;
      },
      'two devices, one of them with two models',
      start_ms,
    );

    // One on each device: `small` takes one request at a time.
    const first = await Asked.of('small', 1);
    const second = await Asked.of('small', 1);
    const [beside, elsewhere] = first.session === crowded.session_id ? [first, second] : [second, first];
    expect([beside.session, elsewhere.session === crowded.session_id]).toEqual([crowded.session_id, false]);
    const larger = [await Asked.of('large', 1), await Asked.of('large', 2)];
    for (const one of larger) expect(one.status, one.status === 200 ? '' : await one.until(1)).toBe(200);

    // The other device has no place: nothing happens.
    const refused = await Asked.of('large', 3);
    expect(refused.status).toBe(429);
    expect(await refused.until(1)).toContain('more are required');
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    expect(refused.headers.get('x-hpcserve-refused')).toBeNull();
    expect((await deviceOf(crowded.session_id)).resting).toEqual([]);

    // Now it has one.
    elsewhere.leave();
    const third = await eventually(
      async () => {
        const answer = await Asked.of('large', 3);
        return answer.status === 200 ? answer : undefined;
      },
      'the larger to be let in',
      limit_ms(15_000),
    );
    const before = beside.text.length;
    expect(third.session).toBe(crowded.session_id);
    const now = await deviceOf(crowded.session_id);
    expect(now.resting).toEqual(['small']);
    expect(now.instances.map(({ model, prompts, decoding }) => [model, prompts + decoding])).toEqual([
      ['large', 3],
    ]);
    expect(now.decisions.filter(({ kind }) => kind === 'move')).toMatchObject([
      {
        model: 'small',
        because: expect.stringMatching(
          /^large on [0-9a-f]{8} \(batch 2\) takes the place of small on [0-9a-f]{8} \(batch 1\), whose requests go to /,
        ),
      },
    ]);
    const gone_on = await beside.until(before + tokens(200));
    expect(smallAlone.slice(0, gone_on.length)).toBe(gone_on);
    const let_in = await third.until(tokens(200));
    expect(largeAlone.slice(0, let_in.length)).toBe(let_in);
    const metrics = await (await admin('/metrics')).text();
    expect(Number(/^hpcserve_continuations_total\{[^}]*\} (\d+)/m.exec(metrics)?.[1])).toBe(1);
    expect(logged.filter((line) => line.includes('gives way'))).toHaveLength(1);
    for (const one of [beside, third, ...larger]) one.leave();
  },
  limit_ms(90_000),
);
