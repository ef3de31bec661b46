/** A model of a device worker: what moves it from state to state, what it refuses, and what it gives up with each. */
import { describe, expect, it } from 'vitest';
import type { HostedEngine } from '../../../agent/device-worker/compute/hosted-engine.ts';
import type { Submission } from '../../../agent/device-worker/compute/messages.ts';
import { ModelLoads } from '../../../agent/device-worker/compute/model-loads.ts';
import type { ProfileMeasurement } from '../../../agent/device-worker/compute/profile-measurement.ts';
import { type LoadMessage, WorkerModel } from '../../../agent/device-worker/compute/worker-model.ts';
import { WorkerModels } from '../../../agent/device-worker/compute/worker-models.ts';
import type { DevicePool } from '../../../agent/memory/device-pool.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const message = (name: string): LoadMessage => ({ type: 'load', name, options: {} }) as LoadMessage;
const submission = (id: number): Submission => ({ id, model: 'rests' }) as Submission;

/** What a model has in its states, which say what becomes of them. */
class Held {
  readonly given_up: string[] = [];
  readonly opening = { advance: () => undefined, abort: () => void this.given_up.push('opening') };
  readonly profiling = {
    engine: { close: () => void this.given_up.push('engine') } as Engine,
    measurement: { return: () => void this.given_up.push('measurement') } as unknown as ProfileMeasurement,
    began_ms: 0,
    expected_ms: 0,
    waits_since_ms: 0,
  };
  readonly serving = {
    hosted: { close: () => void this.given_up.push('hosted') } as HostedEngine,
    leaveSchedule: () => void this.given_up.push('schedule'),
  };
}

/** A model in each of its states, the way there, and what it holds. */
function inState(state: WorkerModel['state'] | 'returning'): { model: WorkerModel; held: Held } {
  const held = new Held();
  const model = new WorkerModel(message('rests'));
  if (state === 'loading') model.open(held.opening);
  else if (state === 'profiling') model.profile(held.profiling);
  else model.serve(held.serving);
  if (state === 'failed') model.fail();
  if (state === 'suspended' || state === 'returning') model.suspend();
  if (state === 'returning') {
    model.resume(submission(1));
    model.open(held.opening);
  }
  held.given_up.length = 0;
  return { model, held };
}

describe('a model', () => {
  const holds = {
    loading: ['opening'],
    profiling: ['measurement', 'engine'],
    serving: ['hosted', 'schedule'],
    suspended: [],
    returning: ['opening'],
    failed: [],
  };

  it.each(Object.entries(holds))(
    'that is %s gives up what it holds where it is disposed of: %j',
    (state, parts) => {
      const { model, held } = inState(state as keyof typeof holds);
      model.dispose();
      expect(held.given_up).toEqual(parts);
      model.dispose();
      expect(held.given_up).toEqual(parts);
    },
  );

  it.each(['loading', 'profiling', 'serving', 'returning'] as const)(
    'that is %s fails, and holds nothing',
    (state) => {
      const { model, held } = inState(state);
      expect(model.fail().map(({ id }) => id)).toEqual(state === 'returning' ? [1] : []);
      expect([model.state, model.isAway, held.given_up]).toEqual(['failed', false, holds[state]]);
      model.reload(message('rests'));
      expect(model.state).toBe('loading');
    },
  );

  it('has failed even where its engine cannot be closed, and has left the schedule', () => {
    const { model, held } = inState('serving');
    held.serving.hosted.close = () => {
      throw new Error('the device is gone');
    };
    expect(() => model.fail()).toThrow('the device is gone');
    expect([model.state, held.given_up]).toEqual(['failed', ['schedule']]);
  });

  it('refuses what its state does not allow, and stays as it is', () => {
    const held = new Held();
    const moves: Record<string, (model: WorkerModel) => unknown> = {
      open: (model) => model.open(held.opening),
      advance: (model) => model.advance(false),
      queue: (model) => model.queue(1),
      profile: (model) => model.profile(held.profiling),
      reopen: (model) => model.reopen(),
      serve: (model) => model.serve(held.serving),
      change: (model) => model.change(message('rests')),
      suspend: (model) => model.suspend(),
      resume: (model) => model.resume(submission(9)),
      keepAway: (model) => model.keepAway(),
      fail: (model) => model.fail(),
      reload: (model) => model.reload(message('rests')),
    };
    const allowed: Record<string, string[]> = {
      loading: ['advance', 'queue', 'profile', 'serve', 'fail'],
      profiling: ['reopen', 'serve', 'fail'],
      serving: ['change', 'suspend', 'fail'],
      suspended: ['resume'],
      returning: ['advance', 'queue', 'profile', 'serve', 'resume', 'keepAway', 'fail'],
      failed: ['reload'],
    };
    for (const [state, may] of Object.entries(allowed))
      for (const [move, make] of Object.entries(moves)) {
        const { model, held: own } = inState(state as keyof typeof holds);
        const before = model.state;
        if (may.includes(move)) expect(() => make(model), `${move} of ${state}`).not.toThrow();
        else {
          expect(() => make(model), `${move} of ${state}`).toThrow(/^the model rests (is|was) /);
          expect([model.state, own.given_up], `${move} of ${state}`).toEqual([before, []]);
        }
      }
    expect(held.given_up).toEqual([]);
  });
});

/** Loads over a pool that says itself whether it is full, and when a load is over. */
class Loads {
  readonly models = new WorkerModels();
  readonly suspended = inState('suspended').model;
  readonly opened: string[] = [];
  readonly served: string[] = [];
  full = false;
  over = false;
  changing = false;
  readonly #pool = {
    open: (_options: unknown, { model }: { model: string }) => {
      if (this.full && model !== 'other') throw new HpcserveError('E_POOL_FULL', { what: 'it is full' });
      this.opened.push(model);
      return { advance: () => (this.over ? ({ close: () => undefined } as Engine) : undefined) };
    },
  } as unknown as DevicePool;
  readonly loads = new ModelLoads(() => this.#pool, this.models, {
    ring: { signal: new Int32Array(1), meanwhile: () => false, fabrics: undefined, news: () => undefined },
    send: () => undefined,
    beat: () => undefined,
    areChanging: () => this.changing,
    giveWay: () => false,
    loaded: () => undefined,
    pipelineOpened: () => undefined,
    stream: () => {
      throw new Error('nothing is streamed here');
    },
    opened: (model) => {
      this.served.push(model.name);
      model.serve(new Held().serving);
    },
    failed: ({ name }, error) => {
      throw new Error(`${name}: ${error.message}`);
    },
  });

  constructor() {
    this.models.add(this.suspended);
  }

  load(name: string): void {
    const model = new WorkerModel(message(name));
    this.models.add(model);
    this.loads.begin(model, 'nobody');
  }

  ask(id: number): void {
    if (this.suspended.resume(submission(id))) this.loads.begin(this.suspended, 'nobody');
  }

  advance(): void {
    this.loads.advance(false);
  }
}

describe('a model that is suspended', () => {
  it('is opened once, though the first that asked for it went away', () => {
    const device = new Loads();
    device.ask(1);
    device.suspended.withdraw(1);
    device.ask(2);
    expect(device.opened).toEqual(['rests']);
    device.over = true;
    device.advance();
    expect(device.served).toEqual(['rests']);
    expect(device.loads.any).toBe(false);
  });

  it('waits once where the pool is full while another is on its way', () => {
    const device = new Loads();
    device.load('other');
    device.full = true;
    device.ask(1);
    device.suspended.withdraw(1);
    device.ask(2);
    device.full = false;
    device.over = true;
    for (let round = 0; round < 6; round++) device.advance();
    expect(device.served).toEqual(['other', 'rests']);
  });

  it('is not kept waiting for a change of stages that may take minutes, as one that is new here is', () => {
    const device = new Loads();
    device.full = true;
    device.changing = true;
    device.load('late');
    expect(() => device.ask(1)).toThrow('rests: it is full');
    for (let round = 0; round < 3; round++) device.advance();
    device.changing = false;
    device.full = false;
    device.over = true;
    for (let round = 0; round < 3; round++) device.advance();
    expect(device.opened).toEqual(['late']);
    expect(device.served).toEqual(['late']);
  });

  it('waits in the order in which models found no room, whatever the order in which they were loaded', () => {
    const device = new Loads();
    device.load('other');
    const late = new WorkerModel(message('late'));
    device.models.add(late);
    late.queue(7);
    device.suspended.resume(submission(1));
    device.suspended.queue(8);
    device.over = true;
    for (let round = 0; round < 6; round++) device.advance();
    expect(device.served).toEqual(['other', 'late', 'rests']);
  });

  it('is asked for anew once it could not come back', () => {
    const { suspended } = new Loads();
    expect(suspended.resume(submission(1))).toBe(true);
    expect(suspended.resume(submission(2))).toBe(false);
    expect(suspended.keepAway().map(({ id }) => id)).toEqual([1, 2]);
    expect([suspended.state, suspended.isAway]).toEqual(['suspended', true]);
    expect(suspended.resume(submission(3))).toBe(true);
  });
});
