/**
 * Three models on two workers of one core each, under load: the tokens that each gives alone, and memory that is
 * explained.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { type DeviceReport, deviceReportSchema } from '../../../spec/device-report.ts';
import { sharedDeviceViewSchema } from '../../../spec/device-view.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths, headers } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { fixtureUnit, Site, unitOf } from '../support.ts';

const models = [
  // Room for the prompts of four, and not for all their answers.
  { name: 'narrow', preset: 'tiny-llama', kv_tokens: 512, slo: {} },
  { name: 'promised', preset: 'tiny-qwen3', kv_tokens: 4096, slo: { ttft_ms: 60_000, tpot_ms: 5000 } },
  { name: 'free', preset: 'tiny-qwen2', kv_tokens: 4096, slo: {} },
];
const questions = ['Why do queues grow?', 'What is a core?', 'Name a number.', 'How long is a batch?'];
/** Share of a worker's memory that its parts may leave unexplained: see docs/sharing.md. */
const unexplained_max = 0.005;
/** So many reports are held against what the kernel says just before and just after: half of them differ by less. */
const looks_min = 5;
const pss_drift_max = 0.02;

async function ask(site: Site, record: SessionRecord, model: string, question: string): Promise<string> {
  const content = `${question} ${'Say it again in other words, and slowly. '.repeat(4)}`;
  const answer = await site.pool(record).request({
    method: 'POST',
    path: '/v1/chat/completions',
    headers: { 'content-type': 'application/json', [headers.model]: model },
    body: JSON.stringify({
      model,
      max_tokens: 60,
      min_tokens: 60,
      temperature: 0.8,
      seed: 11,
      messages: [{ role: 'user', content }],
    }),
  });
  const text = await answer.body.text();
  expect(answer.statusCode, text).toBe(200);
  return (JSON.parse(text) as { choices: { message: { content: string } }[] }).choices[0]!.message.content;
}

async function report(site: Site, record: SessionRecord): Promise<DeviceReport> {
  const answer = await site.pool(record).request({ method: 'GET', path: agentPaths.device });
  return deviceReportSchema.parse(await answer.body.json());
}

async function pssOf(pid: number): Promise<number> {
  const rollup = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
  return 1024 * Number(/^Pss:\s+(\d+)/m.exec(rollup)![1]);
}

describe('devices that models share', () => {
  test('under load every answer is the one that is given alone, and the memory is explained', async () => {
    await using site = await Site.open();
    const units: UnitSpec[] = [];
    for (const { name, preset, kv_tokens, slo } of models) {
      const model_path = join(site.folder, `${name}.gguf`);
      await synthesize({ path: model_path, shape: synthPresets[preset]!, quantization: 'F16', seed: 4 });
      for (const first_device of [0, 1])
        units.push(
          unitOf(
            { name, slo, max_sequences: 4, batch_invariant: true, prefill_chunk_tokens: 64 },
            {
              unit: `${name}-${first_device}`,
              engine: 'native',
              device_kind: 'gpu',
              device_count: 1,
              first_device,
              model_path,
              kv_tokens,
            },
          ),
        );
    }
    await site.start(units, { emulated: 'cpu', device_model: 'A100-40GB', device_memory_bytes: 2 ** 30 });
    const whole = (record: SessionRecord): boolean =>
      record.metadata.models.length === models.length &&
      record.metadata.models.every(({ state }) => state === 'serving');
    const first = await site.session(whole, 30_000);
    const second = await site.session(
      (record) => whole(record) && record.session_id !== first.session_id,
      30_000,
    );

    const asked = models.flatMap(({ name }) => questions.map((question) => [name, question] as const));
    const alone: string[] = [];
    for (const [name, question] of asked) alone.push(await ask(site, first, name, question));
    expect(new Set(alone).size).toBe(alone.length);

    // Asked again and again until both have been looked at.
    let looked = false;
    const keepAsking = async (worker: SessionRecord): Promise<string[][]> => {
      const rounds: string[][] = [];
      do rounds.push(await Promise.all(asked.map(([name, question]) => ask(site, worker, name, question))));
      while (!looked);
      return rounds;
    };
    const answers = Promise.all([first, second].map(keepAsking));
    try {
      for (const worker of [first, second]) {
        const { pid } = await report(site, worker);
        const looks: (DeviceReport & { drift: number })[] = [];
        while (looks.length < looks_min) {
          looks.push(
            await eventually(async () => {
              const before = await pssOf(pid);
              const now = await report(site, worker);
              const drift = now.memory.pss_bytes / ((before + (await pssOf(pid))) / 2) - 1;
              return now.instances.some(({ decoding }) => decoding > 0) ? { ...now, drift } : undefined;
            }, 'sequences that decode'),
          );
        }
        // It is the kernel's own sum, which moves while the worker computes and others map the same libraries.
        const drifts = looks.map(({ drift }) => Math.abs(drift)).sort((a, b) => a - b);
        expect(drifts[(looks_min - 1) / 2]).toBeLessThan(pss_drift_max);
        const { instances, memory, scheduler } = looks[0]!;
        expect(instances.map(({ model }) => model)).toEqual(models.map(({ name }) => name).sort());
        const explained = memory.parts.reduce((sum, { bytes }) => sum + bytes, 0);
        expect(explained + memory.unexplained_bytes).toBe(memory.pss_bytes);
        expect(memory.unexplained_bytes / memory.pss_bytes).toBeLessThan(unexplained_max);
        expect(scheduler.iterations).toBeGreaterThan(0);
      }
    } finally {
      looked = true;
      await Promise.allSettled([answers]);
    }
    for (const given of (await answers).flat()) expect(given).toEqual(alone);
  }, 120_000);

  test('shares a device as the site says', async () => {
    await using site = await Site.open();
    const model_path = join(site.folder, 'm.gguf');
    await synthesize({
      path: model_path,
      shape: synthPresets['tiny-llama']!,
      quantization: 'F16',
      seed: 4,
    });
    const sharing = { overestimate: 0.3, kv_watermark: 0.5, keep_alive_s: 7, consolidation: false };
    await site.start([unitOf({ name: 'm', kv_type: 'q8_0' }, { engine: 'native', model_path })], { sharing });
    const record = await site.serving('m', 30_000);
    const answer = await site.pool(record).request({ method: 'GET', path: agentPaths.sharing });
    const { settings, instances } = sharedDeviceViewSchema.parse(await answer.body.json());
    expect(settings).toMatchObject({
      overestimate: 0.3,
      kv_watermark: 0.5,
      keep_alive_ms: 7000,
      consolidation: false,
    });
    // 8 bits and a scale for 32 values, where 16 bits are the default.
    const { n_layer, n_head_kv, head_dim } = synthPresets['tiny-llama']!;
    const values = 2 * n_layer * n_head_kv * head_dim;
    expect(instances[0]!.kv_bytes_per_token).toBeCloseTo((values * 34) / 32, 0);
  }, 60_000);

  test('a unit without a device worker says that it gives no report', async () => {
    await using site = await Site.open();
    await site.start([fixtureUnit('m')]);
    const record = await site.serving('m');
    const answer = await site.pool(record).request({ method: 'GET', path: agentPaths.device });
    expect([answer.statusCode, await answer.body.text()]).toEqual([
      503,
      expect.stringContaining('gives no report'),
    ]);
  });
});
