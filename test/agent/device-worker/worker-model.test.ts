/** A model that rests comes back once, however its clients come and go meanwhile. */
import { describe, expect, it } from 'vitest';
import type { Submission } from '../../../agent/device-worker/compute/messages.ts';
import { type LoadMessage, ModelLoads } from '../../../agent/device-worker/compute/model-loads.ts';
import { SuspendedModels } from '../../../agent/device-worker/compute/suspended-models.ts';
import type { DevicePool } from '../../../agent/memory/device-pool.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const message = (name: string): LoadMessage => ({ type: 'load', name, options: {} }) as LoadMessage;
const submission = (id: number): Submission => ({ id, model: 'rests' }) as Submission;

/** Loads over a pool that says itself whether it is full, and when a load is over. */
class Loads {
  readonly resting = new SuspendedModels();
  readonly opened: string[] = [];
  readonly entered: string[] = [];
  full = false;
  over = false;
  readonly #pool = {
    open: (_options: unknown, { model }: { model: string }) => {
      if (this.full && model === 'rests') throw new HpcserveError('E_POOL_FULL', { what: 'it is full' });
      this.opened.push(model);
      return { advance: () => (this.over ? ({ close: () => undefined } as Engine) : undefined) };
    },
  } as unknown as DevicePool;
  readonly loads = new ModelLoads(() => this.#pool, {
    send: () => undefined,
    beat: () => undefined,
    giveWay: () => false,
    loaded: () => undefined,
    settling: () => false,
    failed: ({ name }, error) => {
      throw new Error(`${name}: ${error.message}`);
    },
  });

  constructor() {
    this.resting.rest(message('rests'));
  }

  ask(id: number): void {
    const back = this.resting.ask(submission(id));
    if (back && back !== 'waits') this.loads.begin(back, 'nobody');
  }

  advance(): void {
    this.loads.advance(false, ({ name }) => {
      this.entered.push(name);
      this.resting.end(name);
    });
  }
}

describe('a model that rests', () => {
  it('is opened once, though the first that asked for it went away', () => {
    const device = new Loads();
    device.ask(1);
    device.resting.cancel('rests', 1);
    device.ask(2);
    expect(device.opened).toEqual(['rests']);
    device.over = true;
    device.advance();
    expect(device.entered).toEqual(['rests']);
    expect(device.loads.any).toBe(false);
  });

  it('waits once where the pool is full while another is on its way', () => {
    const device = new Loads();
    device.loads.begin(message('other'), 'nobody');
    device.full = true;
    device.ask(1);
    device.resting.cancel('rests', 1);
    device.ask(2);
    device.loads.begin(message('rests'), 'nobody');
    device.full = false;
    device.over = true;
    for (let turn = 0; turn < 6; turn++) device.advance();
    expect(device.entered).toEqual(['other', 'rests']);
  });

  it('is asked for anew once it could not come back', () => {
    const { resting } = new Loads();
    expect(resting.ask(submission(1))).toMatchObject({ name: 'rests' });
    expect(resting.ask(submission(2))).toBe('waits');
    expect(resting.turnAway('rests')!.map(({ id }) => id)).toEqual([1, 2]);
    expect(resting.ask(submission(3))).toMatchObject({ name: 'rests' });
  });
});
