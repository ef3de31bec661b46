/** What the main threads of two workers know of the stages of a pipeline whose layout changes, or does not. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { FromWorker, NativeModel } from '../../../agent/device-worker/messages.ts';
import { WorkerMetrics } from '../../../agent/device-worker/metrics.ts';
import { Models } from '../../../agent/device-worker/models.ts';
import { defaultLimits } from '../../../agent/device-worker/worker-options.ts';
import type { OperatorRange, PipelineLayout } from '../../../solver/refactoring/layout.ts';
import { defaultSharingSettings } from '../../../solver/sharing/settings.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';
import { engineOptions } from '../engine/support.ts';
import { eightLayers, layersOn } from '../pipeline/worker-pipelines.ts';

class Device implements AsyncDisposable {
  readonly told: FromWorker[] = [];
  readonly models = new Models({
    threads: 1,
    pool_bytes: 256 * 2 ** 20,
    ggml_device: undefined,
    settings: defaultSharingSettings,
    step_ms_min: 0,
    profile_ms: 1,
    stall_ms: defaultLimits.stall_ms,
    warn: () => undefined,
    metrics: new WorkerMetrics('cpu'),
    failed: (error) => expect.fail(error.message),
    tell: (message) => this.told.push(message),
  });

  /** Operators that it says it computes. */
  get range(): OperatorRange {
    const { begin, end } = this.models.all[0]!.config.pipeline!;
    return { begin, end };
  }

  until(fits: (message: FromWorker) => boolean, what: string): Promise<unknown> {
    return eventually(async () => this.told.some(fits), what);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.models.stop();
  }
}

/** Of the device behind the first. */
function rangeOf(layout: PipelineLayout): OperatorRange {
  const { begin, end } = layout[1]!;
  return { begin, end };
}

test('a device has the stage that it computes, and not one that was prepared and does not come', {
  timeout: 120_000,
}, async () => {
  await using scratch = await scratchFolder();
  await using a = new Device();
  await using b = new Device();
  const { threads: _, ...options } = engineOptions(await eightLayers(), {
    kv_tokens: 1024,
    prefill_chunk_tokens: 64,
  });
  const modelOf = (layout: PipelineLayout, stage: number, ring: number): NativeModel => {
    const { device, begin, end } = layout[stage]!;
    const socket = (at: number): string => join(scratch.path, `${ring}-${at % 2}`);
    const sockets = { listen: socket(stage), next: socket(stage + 1) };
    const pipeline = { stage, stages: 2, begin, end, ...sockets, device, device_identity: device };
    return { name: 'm', aliases: [], ...options, pipeline };
  };
  const before = layersOn('ab', 4, 4);
  const after = layersOn('ab', 2, 6);
  a.models.load(modelOf(before, 0, 1));
  b.models.load(modelOf(before, 1, 1));
  await a.until(
    (message) => message.type === 'model' && message.state === 'serving',
    'the pipeline to serve',
  );
  b.models.prepare(2, modelOf(after, 1, 2));
  await eventually(
    async () => b.told.filter(({ type }) => type === 'weights_loaded').length === 2,
    'the stage of the layout to come',
  );
  b.models.unprepare(2, 'm');
  await b.models.report();
  expect(b.range).toEqual(rangeOf(before));
  const before_bytes = b.models.all[0]!.stats?.weight_bytes;
  b.models.prepare(3, modelOf(after, 1, 3));
  a.models.refactor(3, after, modelOf(after, 0, 3));
  await a.until(({ type }) => type === 'refactored', 'the change to end');
  expect(a.told.find(({ type }) => type === 'refactored')).toMatchObject({
    report: { outcome: { kind: 'refactored' } },
  });
  await expect.poll(() => b.range, { timeout: 15_000 }).toEqual(rangeOf(after));
  // What it says of its weights is of that stage, too: six layers of them in place of four.
  const { stats } = b.models.all[0]!;
  expect(stats!.weight_bytes).toBeGreaterThan(1.2 * before_bytes!);
  const served = b.told.filter((message) => message.type === 'model' && message.state === 'serving');
  expect(served.at(-1)).toMatchObject({ layouts: stats!.layouts });
  expect(served.at(-1)).not.toMatchObject({
    layouts: served[0] && 'layouts' in served[0] && served[0].layouts,
  });
  // It is told late of a change that has come.
  b.models.unprepare(3, 'm');
  await b.models.report();
  expect(b.range).toEqual(rangeOf(after));
});
