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
import type { UnitSpec } from '../../spec/launch.ts';
import { WorkerHarness } from '../agent/device-worker/support.ts';
import { limit_ms, slow_device, start_ms } from '../agent/engine/test-backend.ts';
import { Site, unitOf } from '../agent/support.ts';
import { eventually } from '../mesh/support.ts';

/** A slow device computes a quarter of it. */
const tokens = (count: number): number => (slow_device ? Math.ceil(count / 4) : count);
/** Answers are so long that none ends by itself before all is over. */
const lengths = {
  large: { prompt_tokens: tokens(1300), answer_tokens: tokens(400) },
  small: { prompt_tokens: tokens(20), answer_tokens: tokens(1800) },
};
const context_tokens = tokens(2048);
type Model = keyof typeof lengths;
let site: Site;
let gateway: RunningGateway;
let key = '';
const logged: string[] = [];

beforeAll(async () => {
  site = await Site.open();
  const unit = async (name: string, max_sequences: number): Promise<UnitSpec> => {
    const model_path = join(site.folder, `${name}.gguf`);
    const shape = synthPresets['tiny-llama']!;
    await synthesize({ path: model_path, shape, quantization: 'F16', seed: max_sequences });
    return unitOf(
      { name, batch_invariant: true, max_sequences, slo: { ttft_ms: 60_000, tpot_ms: 5000 } },
      { engine: 'native', model_path, context_tokens, kv_tokens: tokens(16_384) },
    );
  };
  const [large, small] = await Promise.all([unit('large', 8), unit('small', 1)]);
  // Weights of both (6.5 MiB), and KV for 5632 tokens of 1 KiB: what `small` needs at least (2048), and two requests of
  // `large` (two times 1556 to 1700), but not three; without `small` there is room for three.
  const pool_gb = (6.5 * 2 ** 20 + tokens(5632) * 2 ** 10) / 1e9;
  // Slow enough that answers of `large` last 16 s, also where other tests have the cores.
  const pace = { emulated_step_ms: 40 };
  await Promise.all([
    site.start([large, small], { ...pace, sharing: { pool_gb } }),
    site.start([small], pace),
  ]);
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

async function deviceOf(session_id: string): Promise<DeviceReport> {
  return (await devices()).find((device) => device.session_id === session_id)!.report;
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

/** Whole answers of a worker that has nothing else to do. */
async function alone(requests: readonly [Model, number][]): Promise<string[]> {
  const worker = new WorkerHarness();
  try {
    await worker.configure();
    const texts: string[] = [];
    for (const [name, seed] of requests) {
      const model_path = join(site.folder, `${name}.gguf`);
      await worker.load({ name, model_path, context_tokens, batch_invariant: true });
      texts.push(textOf(await worker.stream('/v1/completions', asked(name, seed))));
    }
    return texts;
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
        return now.length === 2 ? now.find(({ report }) => report.instances.length === 2) : undefined;
      },
      'two devices, one of them with two models',
      start_ms,
    );
    const [smallAlone, largeAlone] = (await alone([
      ['small', 1],
      ['large', 3],
    ])) as [string, string];

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
