/** What may become of a launch, and what stays written down of what was before. */
import { expect, it } from 'vitest';
import { inPhase, launchRecordSchema } from '../../../control/state/launch-record.ts';
import {
  adopted,
  cancelRequested,
  cancelUnheard,
  ended,
  givenUp,
  newLaunch,
  refused,
  served,
  submitted,
  submitting,
  successorOf,
  superseded,
  takenApart,
  tookPlace,
  wantedAgain,
  withNews,
} from '../../../control/state/launch-transitions.ts';
import { plannedLaunch } from '../support.ts';

const fresh = newLaunch('0000000000000001', 'f', plannedLaunch('m-0'));
const running = { job_id: '7', phase: 'running', state: 'RUNNING' } as const;
const over = { job_id: '7', phase: 'ended', state: 'TIMEOUT' } as const;
/** As it stands in the file. */
const written = (launch: object): unknown => JSON.parse(JSON.stringify(launch));

it('goes from planned to ended, and every record on the way can be read again', () => {
  const intent = submitting(fresh, 5);
  const known = submitted(intent, '7', 'partition gpu');
  const serving = served(withNews(known, running), 9);
  const asked = cancelRequested(serving, 10);
  const end = ended(superseded(asked), over, 11);
  for (const launch of [fresh, intent, known, serving, asked, end, givenUp(end, 'enough')])
    expect(written(launchRecordSchema.parse(launch))).toEqual(written(launch));
  expect(written(end)).toEqual({
    ...(written(fresh) as object),
    phase: 'ended',
    superseded: true,
    submitting_since_ms: 5,
    job_id: '7',
    where: 'partition gpu',
    served_at_ms: 9,
    cancel_requested_ms: 10,
    last: over,
    ended_at_ms: 11,
  });
});

it('leaves nothing of an array that was refused, nor of the one before where it goes by itself', () => {
  const task = submitting(fresh, 5, { array_id: '00000000000000aa', task: 2 });
  expect(written(takenApart(task))).toEqual(written(fresh));
  expect(written(submitting(task, 6))).toEqual(written(submitting(fresh, 6)));
});

it('counts a cancellation from when it was asked for first, unless nobody heard it', () => {
  const known = submitted(submitting(fresh, 5), '7', 'here');
  expect(cancelRequested(cancelRequested(known, 10), 20).cancel_requested_ms).toBe(10);
  const unheard = cancelUnheard(cancelRequested(known, 10));
  expect(written(unheard)).toEqual(written(known));
  expect(cancelRequested(unheard, 20).cancel_requested_ms).toBe(20);
});

it('is adopted without a word of where, refused without a job, and succeeded by the same', () => {
  expect(written(adopted(submitting(fresh, 5), '7'))).not.toHaveProperty('where');
  const refusal = refused(submitting(fresh, 5), 'no such account', 6);
  expect(refusal).toMatchObject({ phase: 'ended', last: { job_id: '', state: 'REFUSED' }, ended_at_ms: 6 });
  expect(written(successorOf(refusal, '0000000000000002', 1))).toEqual({
    ...(written(fresh) as object),
    launch_id: '0000000000000002',
    tries: 1,
  });
});

it('is on its way out or wanted, and a replacement or not, whatever its phase', () => {
  const replacement = newLaunch('0000000000000002', 'f', plannedLaunch('m-0'), {
    instead_of: fresh.launch_id,
  });
  expect(written(tookPlace(replacement))).not.toHaveProperty('instead_of');
  expect(wantedAgain(superseded(replacement))).toEqual(replacement);
});

it('is not changed as if it were in another phase', () => {
  expect(inPhase(fresh, 'planned', 'submitting')).toBe(fresh);
  expect(() => inPhase(fresh, 'submitted')).toThrow('is planned, not submitted');
  expect(() => inPhase(undefined, 'submitted')).toThrow('is gone');
});
