/** A pipeline whose stages are device workers on two nodes of a site whose fabric is private. */
import { afterEach, describe, expect, it } from 'vitest';
import type { FromWorker } from '../../../agent/device-worker/messages.ts';
import { fabricAbsence } from '../../../native/fabric/fabric.ts';
import { apart, canBeApart } from './apart.ts';
import { eightLayers, layersOn, WorkerPipelines } from './worker-pipelines.ts';

const open: WorkerPipelines[] = [];
afterEach(async () => {
  for (const pipelines of open.splice(0)) await pipelines.close();
});

/** Of 256 elements a row: a chunk is a frame of 512 KiB. */
const chunk_tokens = 512;
const prompt = 'what becomes of a long prompt '.repeat(60);

async function start(devices: string, fabrics: string[]): Promise<WorkerPipelines> {
  const pipelines = new WorkerPipelines(await eightLayers(), {
    model: { context_tokens: 4096, kv_tokens: 8192, prefill_chunk_tokens: chunk_tokens },
    fork: apart,
    configuration: {
      moves: {
        // Nobody is asked on it: no answer moves.
        socket: '/nonexistent',
        host: '127.0.0.1',
        port_range: undefined,
        private_fabric: true,
        fabrics,
        session_id: 'of-this-worker',
      },
    },
  });
  open.push(pipelines);
  await pipelines.start(devices);
  return pipelines;
}

async function ask({ coordinator }: WorkerPipelines): Promise<string> {
  const { status, text } = await coordinator.post('/v1/completions', {
    model: 'm',
    prompt,
    max_tokens: 40,
    temperature: 0,
    ignore_eos: true,
  });
  expect(status, text).toBe(200);
  return JSON.parse(text).choices[0].text;
}

describe.skipIf(fabricAbsence() !== undefined || !canBeApart)('stages on two nodes', () => {
  it('write long frames into each other’s memory, and answer as one stage does', async () => {
    const whole = await start('a', []);
    await whole.open(layersOn('a', 8));
    const expected = await ask(whole);
    const pipelines = await start('ab', ['nothing', 'tcp']);
    await pipelines.open(layersOn('ab', 4, 4));
    for (const worker of pipelines.workers.values()) {
      await worker.message((message) => wayOf(message)?.startsWith('rma (tcp') === true);
      const notice = await worker.message(
        (message) => message.type === 'frames' && message.news.type === 'notice',
      );
      expect(notice).toMatchObject({ news: { provider: 'nothing', error: { code: 'E_STAGE_FABRIC' } } });
    }
    expect(await ask(pipelines)).toBe(expected);
    // Nor did it break under the frames.
    for (const worker of pipelines.workers.values())
      expect(worker.lines.filter(({ msg }) => String(msg).includes('rma (tcp'))).toEqual([]);
  });
});

function wayOf(message: FromWorker): string | undefined {
  return message.type === 'frames' && message.news.type === 'way' ? message.news.way : undefined;
}
