/** Jobs as Slurm tells of them, as the runner hands them on and `deployment.json` keeps them. */
import { expect, it } from 'vitest';
import { SlurmRunner } from '../../../control/runner/slurm-runner.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import { SlurmCommandClient } from '../../../slurm/client.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord, temporaryStore } from '../support.ts';

/** A job that started at noon, as squeue shows it. */
async function polled(state: string, time_limit: string, end = 'N/A'): Promise<JobSnapshot> {
  const columns = ['7', '7', 'N/A', state, 'None', '', 'n1', 'j', 'ada', '(null)', '(null)', 'p'];
  const times = ['2026-11-21T11:59:00', '2026-11-21T12:00:00', end, time_limit, '0', '0'];
  const queue = `${[...columns, ...times].join('\u001f')}\u001e\n`;
  const site = siteSchema.parse({ name: 'here', kind: 'slurm' });
  const runner = new SlurmRunner({
    site: { site, path: '/site.yaml', provenance: () => undefined, layout: stateLayout('/nowhere', 'here') },
    client: new SlurmCommandClient({ run: async () => ({ stdout: queue, stderr: '', code: 0 }) }),
    environment: {},
    pace: { room: () => 1, take: async () => 1 },
  });
  return (await runner.poll([{ job_id: '7' }])).get('7')!;
}

it.each([
  ['1-00:00:00', Date.UTC(2026, 10, 22, 12)],
  ['UNLIMITED', undefined],
  ['NOT_SET', undefined],
])('of a job with the time limit %s it is written down when that ends', async (time_limit, expected) => {
  const last = await polled('RUNNING', time_limit);
  expect(last).toMatchObject({ phase: 'running', start_time_ms: Date.UTC(2026, 10, 21, 12) });
  expect(last.end_time_limit_ms).toBe(expected);
  const { store, dispose } = temporaryStore();
  try {
    store.prepareDeployment('demo');
    store.write(deploymentState([launchRecord(7, { phase: 'submitted', last })]));
    expect(store.require('demo').launches[0]!.last?.end_time_limit_ms).toBe(expected);
  } finally {
    dispose();
  }
});

it('of a job that Slurm still cleans up it is known since when', async () => {
  expect(await polled('COMPLETING', '1:00:00', '2026-11-21T12:30:00')).toMatchObject({
    phase: 'completing',
    ended_at_ms: Date.UTC(2026, 10, 21, 12, 30),
  });
});

it('of a job whose state this version does not know nothing is said, so that it is not taken for over', async () => {
  expect(await polled('SLEEPING', '1:00:00')).toBeUndefined();
});
