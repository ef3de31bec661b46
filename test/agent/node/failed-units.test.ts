import { describe, expect, test } from 'vitest';
import type { UnitGroup } from '../../../agent/node/assign-devices.ts';
import { areAllFailed, failedUnits, lostUnits, toldModels } from '../../../agent/node/failed-units.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { SessionModel } from '../../../spec/session-record.ts';
import { unitOf } from '../support.ts';

const bounds = [
  { begin: 0, end: 2 },
  { begin: 2, end: 4 },
];

/** A device with these units: whole ones, and stages of ones that are cut in two (the third one waits for a stage). */
function group(units: { name: string; stage?: number }[]): UnitGroup {
  return {
    name: units[0]!.name,
    engine: 'native',
    units: units.map(({ name, stage }) => {
      const unit = { ...unitOf({ name }), unit: `${name}-0` };
      return stage === undefined ? unit : { ...unit, stage, stages: bounds };
    }) as UnitGroup['units'],
    devices: [],
    first_device: 0,
    threads: 1,
  } as UnitGroup;
}

const model = (name: string, state: SessionModel['state']): SessionModel =>
  ({ name, aliases: [], state }) as unknown as SessionModel;

describe('units that failed', () => {
  test('are models by their state, and later stages by their error', () => {
    const device = group([{ name: 'whole' }, { name: 'first', stage: 0 }, { name: 'later', stage: 1 }]);
    const models = [model('whole', 'failed'), model('first', 'loading')];
    expect(failedUnits(device, models, new Map())).toEqual(['whole-0']);
    expect(failedUnits(device, models, new Map([['later', 'unreadable']]))).toEqual(['whole-0', 'later-0']);
    // A model that failed once and loads again keeps the error until it is there.
    expect(failedUnits(device, models, new Map([['first', 'before']]))).toEqual(['whole-0']);
  });

  test('leave out those that wait for a stage', () => {
    const device = group([{ name: 'spare', stage: 2 }]);
    expect(failedUnits(device, [], new Map([['spare', 'lent and lost']]))).toEqual([]);
  });
});

describe('a unit that is cut', () => {
  const unreadable = new HpcserveError('E_MODEL_UNREADABLE', { what: 'its file is damaged' });
  const later = {
    group: group([{ name: 'cut', stage: 1 }]),
    failed_units: ['cut-0'],
    model_errors: new Map([['cut', unreadable]]),
    error: undefined,
  };
  const first = group([{ name: 'cut', stage: 0 }, { name: 'whole' }]);
  const told = (state: SessionModel['state'], others: (typeof later)[]): unknown[] =>
    toldModels(first, [model('cut', state), model('whole', 'loading')], () => lostUnits(others)).map(
      (each) => each.state,
    );

  test('has failed where a later stage has, and waits where that may come', () => {
    expect(told('loading', [later])).toEqual(['failed', 'loading']);
    expect(told('loading', [{ ...later, failed_units: [] }])).toEqual(['loading', 'loading']);
    expect(told('draining', [later])).toEqual(['draining', 'loading']);
  });

  test('says why: the stage itself, or its process that was given up', () => {
    expect(lostUnits([later]).get('cut-0')).toBe(unreadable);
    const lost = { ...later, model_errors: new Map(), error: unreadable };
    expect(lostUnits([lost]).get('cut-0')).toBe(unreadable);
    // That the first stage has failed is no news of another one.
    expect(lostUnits([{ ...later, group: first }]).size).toBe(0);
  });
});

describe('an agent', () => {
  const runs = { failed_units: [] as string[], given_up: false };
  const whole = { ...runs, group: group([{ name: 'whole' }]) };
  const first = { ...runs, group: group([{ name: 'cut', stage: 0 }]) };
  const later = { ...runs, group: group([{ name: 'cut', stage: 1 }]), failed_units: ['cut-0'] };
  const spare = { ...runs, group: group([{ name: 'cut', stage: 2 }]) };

  test('goes on while a unit may serve, and ends with the last', () => {
    expect(areAllFailed([whole, later])).toBe(false);
    expect(areAllFailed([{ ...whole, failed_units: ['whole-0'] }, later])).toBe(true);
  });

  test('has lost a unit with any of its stages, and not with a device that only waits for one', () => {
    expect(areAllFailed([first, later])).toBe(true);
    expect(areAllFailed([first])).toBe(false);
    expect(areAllFailed([first, { ...spare, given_up: true }])).toBe(false);
  });

  test('that only waits for stages lives as long as one process that can take them', () => {
    const lost = { ...spare, given_up: true };
    expect(areAllFailed([spare])).toBe(false);
    expect(areAllFailed([spare, lost])).toBe(false);
    expect(areAllFailed([lost, lost])).toBe(true);
  });
});
