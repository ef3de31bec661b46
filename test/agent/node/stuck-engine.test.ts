/** A wrapped engine that hangs in what the kernel does not interrupt, as in a driver: nobody waits for it for ever. */
import { describe, expect, test } from 'vitest';
import { eventually } from '../../mesh/support.ts';
import { lacking, stopComputingThread, threadStopper } from '../stop-thread.ts';
import { alive, fixtureUnit, Site } from '../support.ts';

describe.skipIf(lacking !== '')(
  `an engine that does not end by SIGKILL${lacking && ` [skipped: needs ${lacking}]`}`,
  () => {
    test('keeps neither its agent from ending nor its session from leaving', async () => {
      await using site = await Site.open();
      const program = threadStopper(site.folder);
      const agent = await site.start([fixtureUnit('stuck'), fixtureUnit('sound')]);
      const record = await site.serving('stuck');
      const pid = await agent.pidOf(record);
      // Where threads of Node wait for work.
      const stopper = await stopComputingThread(pid, program, 'libc.so');
      try {
        agent.process.kill('SIGTERM');
        expect(await agent.ended).toEqual({ code: 0, signal: null });
        expect(alive(pid)).toBe(true);
        expect((await agent.state())?.phase).toBe('stopped');
        await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'it left');
      } finally {
        stopper.kill('SIGKILL');
      }
      await eventually(() => !alive(pid), 'it is gone');
    }, 120_000);
  },
);
