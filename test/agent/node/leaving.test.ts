/** How a replica on idle nodes leaves: at the warning before its time limit, since nobody takes its place. */
import { expect, test } from 'vitest';
import { eventually } from '../../mesh/support.ts';
import { fixtureUnit, Site } from '../support.ts';

const textOf = (answer: { body: { text(): Promise<string> } }): Promise<string> => answer.body.text();

test('at SIGUSR1 it takes no new requests, ends the running ones whole, and leaves', async () => {
  await using site = await Site.open();
  const end_s = String(Math.floor(Date.now() / 1000) + 60);
  const agent = await site.start(
    [fixtureUnit('m')],
    { leaves_when_warned: true, drain_s: 1 },
    // Longer than `drain_s`: the time limit is a minute away.
    { HPCSERVE_DRAIN_S: undefined, SLURM_JOB_END_TIME: end_s },
  );
  const record = await site.serving('m');
  const answer = await site.ask(record, 'count 600');
  agent.process.kill('SIGUSR1');
  await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'DOWN', 'it drains');
  expect(agent.process.exitCode).toBe(null);
  expect(await textOf(answer)).toContain('[DONE]');
  expect(await agent.ended).toEqual({ code: 0, signal: null });
  await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'it has left');
  expect(await agent.state()).toMatchObject({
    phase: 'stopped',
    exit_reason: 'the time limit of the job comes near',
  });
});

test('a drain takes as long as the launch says: what runs beyond it is handed over', async () => {
  await using site = await Site.open();
  const agent = await site.start([fixtureUnit('m')], { drain_s: 1 }, { HPCSERVE_DRAIN_S: undefined });
  const answer = await site.ask(await site.serving('m'), 'count 1000000');
  const began_ms = performance.now();
  agent.process.kill('SIGTERM');
  const text = await textOf(answer);
  expect(text).toContain('E_AGENT_NOT_READY');
  expect(performance.now() - began_ms).toBeGreaterThan(900);
  expect(await agent.ended).toEqual({ code: 0, signal: null });
});
