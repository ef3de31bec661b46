/**
 * What jobs prove their provider with: made before they are submitted, renewed while they are looked after, gone with
 * them.
 */
import { existsSync, mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import {
  Delegations,
  delegationEnd_s,
  isRenewalDue,
  ownProvider,
} from '../../../control/state/delegations.ts';
import { Delegation, launchScope } from '../../../mesh/index.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { launchFiles, providerKeyFile } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord, ScriptedRunner, site, temporaryStore } from '../support.ts';

const day_ms = 86_400_000;
const hour_s = 3600;
let place: ReturnType<typeof temporaryStore>;
let events: ProgressEvent[];
let now_ms: number;

beforeEach(() => {
  place = temporaryStore();
  events = [];
  now_ms = Date.now();
});
afterEach(() => place.dispose());

describe('until when a launch proves its provider', () => {
  it('covers a month in the queue, its whole time limit, and clocks that are a day wrong', () => {
    expect(delegationEnd_s(0, 24 * hour_s)).toBe((30 + 1 + 1) * 86_400);
    expect(delegationEnd_s(0, undefined)).toBe(365 * 86_400);
  });

  it('is renewed early enough that whatever starts has its whole time limit', () => {
    for (const time_limit_s of [60, hour_s, 7 * 86_400, undefined]) {
      const ends_at_ms = delegationEnd_s(now_ms, time_limit_s) * 1000;
      expect(isRenewalDue(ends_at_ms, now_ms, time_limit_s)).toBe(false);
      expect(isRenewalDue(ends_at_ms, now_ms + 14 * day_ms, time_limit_s)).toBe(false);
      const days = time_limit_s === undefined ? 183 : 16;
      expect(isRenewalDue(ends_at_ms, now_ms + days * day_ms, time_limit_s)).toBe(true);
      // Looked after once in a fortnight, nothing ends before the job does.
      expect(ends_at_ms - (now_ms + 15 * day_ms)).toBeGreaterThan((time_limit_s ?? 0) * 1000);
    }
  });
});

describe('the reconciler', () => {
  let runner: ScriptedRunner;
  beforeEach(() => {
    runner = new ScriptedRunner();
  });

  function reconciler(): Reconciler {
    return new Reconciler({
      site,
      store: place.store,
      runner,
      facts: { user: 'someone', environment: {} },
      now_ms: () => now_ms,
      emit: (event) => events.push(event),
      command: 'test',
    });
  }

  async function submitted(): Promise<{ loop: Reconciler; file: string; launch_id: string }> {
    place.store.prepareDeployment('demo');
    place.store.write(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    const { launch_id } = state.launches[0]!;
    const file = join(place.store.launchFolder('demo', launch_id), launchFiles.delegation);
    return { loop, file, launch_id };
  }

  it('gives a job what is good for its launch alone, in the name of its user’s key', async () => {
    const { file, launch_id } = await submitted();
    const made = await Delegation.read(file, launchScope(launch_id));
    const own = ownProvider(place.store.layout, site, 'someone');
    expect(made?.provider_id).toBe(own.fingerprint);
    expect(made?.statement.name).toBe(own.name);
    for (const secret of [file, providerKeyFile(place.store.layout, process.getuid!())])
      expect(statSync(secret).mode & 0o777).toBe(0o600);
    const launch = join(file, '..', launchFiles.launch);
    expect(statSync(launch).size).toBeGreaterThan(0);
    await expect(Delegation.read(file, launchScope('f'.repeat(16)))).rejects.toThrow('does not count');
  });

  it('renews it while the launch is there, with the same key, and writes what is missing', async () => {
    const { loop, file, launch_id } = await submitted();
    const read = (): Promise<Delegation | undefined> => Delegation.read(file, launchScope(launch_id));
    const first = await read();
    await loop.pass('demo');
    expect((await read())?.toText()).toBe(first?.toText());

    now_ms += 200 * day_ms;
    await loop.pass('demo');
    const renewed = await read();
    expect(renewed!.ends_at_ms).toBeGreaterThan(first!.ends_at_ms);
    expect(renewed!.statement.launch_key).toEqual(first!.statement.launch_key);

    // A job of before providers had keys, or whose file was lost.
    for (const spoil of [() => rmSync(file), () => writeFileSync(file, '{')]) {
      spoil();
      await reconciler().pass('demo');
      expect((await read())?.provider_id).toBe(first?.provider_id);
    }
    expect(events.filter(({ kind }) => kind === 'warning')).toEqual([]);
  });

  it('says once that it cannot be renewed, and goes on', async () => {
    const { loop, file } = await submitted();
    now_ms += 200 * day_ms;
    rmSync(file);
    mkdirSync(file);
    for (let count = 0; count < 3; count++) await loop.pass('demo');
    const warnings = events.flatMap((event) => (event.kind === 'warning' ? event.message : []));
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('what jobs prove their provider with was not renewed');
  });

  it('takes it away', async () => {
    const { file, launch_id } = await submitted();
    const delegations = new Delegations(place.store.layout, site, 'someone');
    delegations.remove({ launch_id, launch_folder: join(file, '..') });
    expect(existsSync(file)).toBe(false);
  });
});
