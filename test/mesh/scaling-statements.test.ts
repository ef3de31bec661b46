/** What a hostile or newer member says of demand never takes its record away, and never gets into anybody's table. */
import { beforeAll, expect, it } from 'vitest';
import { SessionIdentity } from '../../mesh/index.ts';
import { openRecord, record_bytes_max, sealRecord } from '../../mesh/record-codec.ts';
import {
  type ScalingStatement,
  type StatedModel,
  scalingStatementSchema,
  stated_models_max,
} from '../../spec/scaling-statement.ts';
import type { SessionMetadata } from '../../spec/session-record.ts';
import { metadata, recordOf } from './support.ts';

const networkKey = new Uint8Array(32).fill(7);
let identity: SessionIdentity;
beforeAll(async () => {
  identity = await SessionIdentity.create();
});

const model: StatedModel = {
  deployment: 'demo',
  of: 'a'.repeat(64),
  model: 'toy',
  mean: 3.5,
  peak: 7,
  asked: true,
  late: false,
  seen: true,
  settled: false,
  have: 2,
  serving: 1,
  stuck: 0,
  claim: 3,
  limit: 4,
  ready: 3,
  slots: 16,
  cost: 0.75,
  wake_s: 12,
};
const statement = (models: unknown[] = [model]): ScalingStatement =>
  ({ format: 1, at: 1_700_000_000_000, models }) as ScalingStatement;
const received = (scaling: unknown): SessionMetadata => {
  const said = { ...metadata, role: 'gateway', scaling } as SessionMetadata;
  return openRecord(sealRecord(recordOf(identity, { metadata: said }), identity, networkKey), networkKey)
    .metadata;
};

it('travel in the record of a gateway as they were said', () => {
  expect(received(statement()).scaling).toEqual(statement());
});

it.each<[string, unknown]>([
  ['of another format', { ...statement(), format: 2 }],
  ['that are no statement', 'all of it is mine'],
  ['with too many models', statement(Array.from({ length: stated_models_max + 1 }, () => model))],
  ['with keys nobody knows', statement([{ ...model, replicas_of_others: 0 }])],
  ['with a name that would act on terminals', statement([{ ...model, model: '\u001b[2Jtoy' }])],
  ['with a name without end', statement([{ ...model, deployment: 'x'.repeat(257) }])],
  ['with more replicas than there can be', statement([{ ...model, claim: 1e9 }])],
  ['with less than no replica', statement([{ ...model, have: -1 }])],
  ['with half a replica', statement([{ ...model, serving: 0.5 }])],
  ['with demand without end', statement([{ ...model, mean: Number.POSITIVE_INFINITY }])],
  ['with a cost that nothing can be divided by', statement([{ ...model, cost: 0 }])],
  ['without slots', statement([{ ...model, slots: 0 }])],
])('are dropped, and the rest of the record counts: %s', (_what, scaling) => {
  expect(received(scaling)).toEqual({ ...metadata, role: 'gateway' });
});

it('are far from the largest record there may be, also with all the models there may be', () => {
  const long = { ...model, deployment: 'd'.repeat(256), model: 'm'.repeat(256) };
  const full = statement(Array.from({ length: stated_models_max }, () => long));
  expect(scalingStatementSchema.safeParse(full).success).toBe(true);
  const record = recordOf(identity, { metadata: { ...metadata, role: 'gateway', scaling: full } });
  expect(sealRecord(record, identity, networkKey).length).toBeLessThan(record_bytes_max / 2);
});
