import { expect, test } from 'vitest';
import { parseExpectedStarts, parseReservations } from '../../slurm/promised-nodes.ts';

test('pending jobs with a start and nodes that Slurm expects', () => {
  const rows = [
    ['12', '2026-11-21T02:00:00', 'gh[1-2]'],
    ['13', 'N/A', '(null)'],
    ['14', '2026-11-21T03:00:00', '(null)'],
  ];
  const output = rows.map((columns) => `${columns.join('\u001f')}\u001e\n`).join('');
  expect(parseExpectedStarts(output)).toEqual([
    { job_id: '12', start_time_ms: Date.UTC(2026, 10, 21, 2), nodes: ['gh1', 'gh2'] },
  ]);
});

test('reservations, as scontrol of 22.05 prints them', () => {
  const output =
    'ReservationName=maintenance StartTime=2026-11-21T09:08:49 EndTime=2026-11-21T10:08:49 Duration=01:00:00 Nodes=gh[1-2],a1 NodeCnt=3 CoreCnt=20 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=20 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n' +
    'ReservationName=licences StartTime=2026-11-21T09:08:49 EndTime=2026-11-21T10:08:49 Nodes= NodeCnt=0\n';
  expect(parseReservations(output)).toEqual([
    {
      name: 'maintenance',
      start_time_ms: Date.UTC(2026, 10, 21, 9, 8, 49),
      end_time_ms: Date.UTC(2026, 10, 21, 10, 8, 49),
      nodes: ['gh1', 'gh2', 'a1'],
    },
    expect.objectContaining({ name: 'licences', nodes: [] }),
  ]);
  expect(parseReservations('No reservations in the system\n')).toEqual([]);
});
