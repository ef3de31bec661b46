/** What a node says to streams that its end cuts off: gateways recognise it and go on elsewhere. */
import { describe, expect, test } from 'vitest';
import { tinyModel, WorkerHarness } from '../agent/device-worker/support.ts';
import { fixtureUnit, Site } from '../agent/support.ts';

/** The error that the last event of a stream carries. */
function lastError(text: string): { code: string; type: string } {
  expect(text.endsWith('\n\n')).toBe(true);
  const last = text.trimEnd().split('\n\n').at(-1)!;
  return (JSON.parse(last.replace(/^data: /, '')) as { error: { code: string; type: string } }).error;
}

describe('at the deadline of a drain', () => {
  test('the agent ends a stream of a wrapped engine with an error event, behind whole events', async () => {
    await using site = await Site.open();
    const agent = await site.start([fixtureUnit('m')], {}, { HPCSERVE_DRAIN_S: '0' });
    const answer = await site.ask(await site.serving('m'), 'count 1000000');
    let text = '';
    for await (const part of answer.body) {
      if (text === '') agent.process.kill('SIGTERM');
      text += String(part);
    }
    expect(lastError(text)).toMatchObject({ code: 'E_AGENT_NOT_READY', type: 'server_error' });
    expect(text).not.toContain('[DONE]');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
  });

  test('a device worker that is told to stop ends its streams with an error event', async () => {
    const worker = new WorkerHarness();
    try {
      const model_path = await tinyModel(worker.folder, 'tiny-llama');
      // Its answer takes seconds: it is not over before the worker is told.
      await worker.configure({}, { step_ms_min: 20 });
      await worker.load({ name: 'm', model_path });
      const body = { model: 'm', prompt: 'x', max_tokens: 900, ignore_eos: true, stream: true };
      const whole = worker.post('/v1/completions', body);
      await worker.report('m', ({ running }) => running > 0);
      worker.send({ type: 'stop' });
      const { text } = await whole;
      expect(lastError(text)).toMatchObject({ code: 'E_WORKER_DRAINING', type: 'server_error' });
      expect((await worker.exited).code).toBe(0);
    } finally {
      await worker.close();
    }
  });
});
