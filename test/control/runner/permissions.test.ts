/** What a script names and Slurm does not know is refused, until Slurm knows it. */
import { expect, it } from 'vitest';
import type { PreparedLaunch } from '../../../control/runner/job-runner.ts';
import { SlurmRunner } from '../../../control/runner/slurm-runner.ts';
import { SlurmCommandClient } from '../../../slurm/client.ts';
import { siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';

it('takes a reservation that was restored, and asks for one that is missing at most once a minute', async () => {
  let now_ms = 0;
  let asked = 0;
  let reservations = 'No reservations in the system\n';
  const answer = (argv: readonly string[]): string => {
    if (argv.includes('sbatch')) return '7\n';
    if (!argv.includes('reservation')) return 'KillWait = 30 sec\n';
    asked++;
    return reservations;
  };
  const runner = new SlurmRunner({
    site: {
      site: siteSchema.parse({ name: 'here', kind: 'slurm' }),
      path: '/site.yaml',
      provenance: () => undefined,
      layout: stateLayout('/nowhere', 'here'),
    },
    client: new SlurmCommandClient({
      run: async (argv) => ({ stdout: answer(argv), stderr: '', code: 0 }),
    }),
    environment: {},
    now_ms: () => now_ms,
    pace: { room: () => 1, take: async () => 1 },
  });
  const submit = (): Promise<{ job_id: string }> =>
    runner.submit({ launch_folder: '/launch' } as PreparedLaunch, {
      text: '',
      directives: [{ name: 'reservation', value: 'course', source: 'site.yaml:3:5' }],
    });
  for (const second of [0, 1, 59]) {
    now_ms = second * 1000;
    await expect(submit()).rejects.toMatchObject({ code: 'E_SLURM_RESERVATION' });
  }
  expect(asked).toBe(1);
  reservations =
    'ReservationName=course StartTime=2026-11-21T12:00:00 EndTime=2026-12-21T12:00:00 Nodes=n1\n';
  now_ms = 61_000;
  expect((await submit()).job_id).toBe('7');
  // What is allowed is not asked again.
  now_ms = 600_000;
  expect((await submit()).job_id).toBe('7');
  expect(asked).toBe(2);
});
