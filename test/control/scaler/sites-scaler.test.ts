/** Keepers of two sites that divide a model: their files go from one to the other as gateways bring them. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Observation } from '../../../control/reconcile/observe.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import { Scaler } from '../../../control/scaler/scaler.ts';
import { readSitesFile, type SitesModel } from '../../../control/scaler/sites/sites-file.ts';
import { type SiteFacts, SitesScaler } from '../../../control/scaler/sites/sites-scaler.ts';
import { withSleep } from '../../../control/scaler/sites/sleep.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import { DeploymentStore } from '../../../control/state/deployment-store.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import type { HeardStatements, KeeperStatement } from '../../../spec/scaling-statement.ts';
import { siteSchema } from '../../../spec/site.ts';
import { gatewayFiles, keeperFiles, stateLayout } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord } from '../support.ts';

const minute = 60_000;
let folder: string;
let now_ms: number;
let events: ProgressEvent[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-sites-scaler-'));
  now_ms = 1000 * minute;
  events = [];
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const share = {
  of: 'digest',
  sites: ['one', 'two'].map((site, at) => ({
    site,
    provider_id: String(at + 1).repeat(32),
    models: [
      {
        name: 'm',
        replicas: 1,
        min_stable_replicas: 0,
        scavenger_replicas: 0,
        request_share: 0.5,
        costs: [{ node_kind: 'cpu', cost: 1 + at }],
      },
    ],
  })),
};
const spec = deploymentSchema.parse({
  name: 'demo',
  models: [{ name: 'm', source: '/no/such/file.gguf', scaling: { min: 1, max: 4, window_s: 120 } }],
  share,
});
const [model] = spec.models;
const facts = (change: Partial<SiteFacts> = {}): SiteFacts => ({
  mean: 0,
  peak: 0,
  asked: false,
  late: false,
  seen: true,
  settled: true,
  have: 1,
  serving: 1,
  stuck: 0,
  limit: 3,
  ready: 3,
  slots: 4,
  cost: 1,
  wake_s: 20,
  ...change,
});

class Site {
  readonly name: string;
  readonly operations: Operations;
  scaler: SitesScaler;
  state: DeploymentState;
  facts: SiteFacts;

  constructor(name: string, change: Partial<SiteFacts> = {}, more: Partial<DeploymentState> = {}) {
    this.name = name;
    const layout = stateLayout(folder, name);
    for (const each of [layout.gateway_folder, layout.keeper_folder]) mkdirSync(each, { recursive: true });
    this.operations = openOperations({
      loaded: {
        site: siteSchema.parse({ name, kind: 'local', keeper: { sites_silent_s: 60 } }),
        path: '/site.yaml',
        layout,
        provenance: () => undefined,
      } as Parameters<typeof openOperations>[0]['loaded'],
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => now_ms,
      emit: (event) => events.push(event),
      signal: new AbortController().signal,
    });
    this.scaler = new SitesScaler(this.operations);
    this.facts = facts(change);
    this.state = deploymentState([], { site: name, spec, kept: true, ...more });
  }

  /** One round of the keeper; what is to be done is done, and serves at the next one. */
  round(): void {
    this.scaler.read([this.state]);
    const { act } = this.scaler.decide(this.state, model!, this.facts);
    if (act !== undefined) this.facts = { ...this.facts, have: act, serving: act, settled: false };
    this.scaler.publish();
  }

  get said(): KeeperStatement | undefined {
    return readJson(join(this.operations.store.layout.keeper_folder, keeperFiles.scaling));
  }

  get seen(): SitesModel {
    return readSitesFile(this.operations.store.layout)[0]!;
  }

  /** The part of its gateway, which hears these others. */
  hear(others: readonly Site[]): void {
    const heard: HeardStatements = {
      format: 1,
      own: this.said!.statement,
      heard: others.flatMap(({ name, said }) => (said ? [{ site: name, statement: said.statement }] : [])),
    };
    const path = join(this.operations.store.layout.gateway_folder, gatewayFiles.sites_scaling);
    writeFileSync(path, JSON.stringify(heard));
  }
}

function readJson<T>(path: string): T | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as T;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Rounds of all, five seconds each; afterwards all gateways have brought what was said. */
function rounds(sites: readonly Site[], count: number): void {
  for (let round = 0; round < count; round++) {
    for (const site of sites) {
      site.round();
      now_ms += 100;
    }
    for (const site of sites) site.hear(sites.filter((other) => other !== site));
    now_ms += 5000 - 100 * sites.length;
  }
}

describe('the keepers of two sites', () => {
  it('add what is needed once, where it costs least, after it was said', () => {
    const one = new Site('one', { cost: 2 });
    const two = new Site('two', { cost: 1 });
    rounds([one, two], 2);
    one.facts = { ...one.facts, mean: 7, peak: 7, asked: true };
    rounds([one, two], 2);
    // It is said, and nothing is done yet.
    expect(two.said!.statement.models[0]).toMatchObject({ have: 1, claim: 2 });
    rounds([one, two], 6);
    expect([one.facts.have, two.facts.have]).toEqual([1, 2]);
    expect(one.said!.peers).toEqual([{ site: 'two', provider_id: '2'.repeat(32) }]);
    expect(one.seen).toMatchObject({
      because: '7.0 requests at once, and replicas that compute 8',
      heard: [{ site: 'two', said: { have: 2 } }],
      silent: [],
    });
  });

  it('decide nothing before the other one spoke, and do without it once it was silent for long enough', () => {
    const one = new Site('one', { mean: 7, peak: 7, asked: true });
    rounds([one], 11);
    expect(one.facts.have).toBe(1);
    expect(one.seen.held).toBe('nothing was heard of two yet');
    rounds([one], 5);
    expect(one.facts.have).toBe(3);
    expect(one.seen).toMatchObject({ silent: ['two'] });
    expect(one.seen.held).toBeUndefined();
  });

  it('change nothing while no gateway of their own says what they mean to do', () => {
    const one = new Site('one', { mean: 7, peak: 7, asked: true });
    for (let round = 0; round < 30; round++) {
      one.round();
      now_ms += 5000;
    }
    expect(one.facts.have).toBe(1);
    expect(one.seen.held).toBe('no gateway of this site publishes what it says');
  });

  it('count nobody who speaks of another division', () => {
    const one = new Site('one', { mean: 3, peak: 3, asked: true });
    const two = new Site('two');
    two.state = { ...two.state, spec: { ...spec, share: { ...share, of: 'another' } } };
    rounds([one, two], 16);
    expect(one.seen.silent).toEqual(['two']);
    expect(one.facts.have).toBe(2);
  });

  it('go on where they were when a keeper is started again: neither the wait nor the claim begins anew', () => {
    const one = new Site('one', { mean: 7, peak: 7, asked: true });
    rounds([one], 14);
    expect(one.seen).toMatchObject({ silent: ['two'], claim: { replicas: 3 } });
    one.scaler = new SitesScaler(one.operations);
    rounds([one], 2);
    expect(one.facts.have).toBe(3);
    // A damaged file is as none: it listens anew.
    writeFileSync(join(one.operations.store.layout.keeper_folder, keeperFiles.sites), '{"models": [');
    one.scaler = new SitesScaler(one.operations);
    rounds([one], 1);
    expect(one.seen.held).toBeDefined();
  });

  it('take their word back when the deployment is stopped', () => {
    const one = new Site('one');
    rounds([one], 1);
    expect(one.said).toBeDefined();
    one.scaler.read([]);
    one.scaler.publish();
    expect(one.said).toBeUndefined();
  });
});

describe('the scaler of a site', () => {
  /** Rounds in which all units serve, and another site says what it likes. */
  async function keep(site: Site, other: Partial<SiteFacts>, count: number): Promise<void> {
    const { store } = site.operations;
    const scaler = new Scaler(site.operations, (event) => events.push(event));
    const two = new Site('two', other);
    for (let round = 0; round < count; round++) {
      const state = store.require('demo');
      const seen: Observation = {
        at_ms: now_ms,
        problems: [],
        launches: new Map(
          state.launches.map(({ launch_id, superseded, planned }) => [
            launch_id,
            {
              launch_id,
              superseded,
              agents: [],
              units: [],
              serving_units: planned.units.map(({ unit }) => unit),
            },
          ]),
        ),
      };
      scaler.readDemand([state]);
      await scaler.scale(state, seen, false);
      scaler.tellSites();
      two.round();
      site.hear([two]);
      two.hear([site]);
      now_ms += 5000;
    }
  }

  function deployed(launches: number): Site {
    const site = new Site('one');
    const store = new DeploymentStore(site.operations.store.layout);
    const records = Array.from({ length: launches }, (_, at) =>
      launchRecord(at + 1, {
        phase: 'submitted',
        submitting_since_ms: (at + 1) * minute,
        served_at_ms: (at + 2) * minute,
      }),
    );
    store.prepareDeployment('demo');
    store.write({ ...site.state, launches: records });
    return site;
  }

  it('gives its own part back, and does not say that the model sleeps while another site has it', async () => {
    const site = deployed(2);
    await keep(site, { cost: 0.1 }, 40);
    const state = site.operations.store.require('demo');
    expect(state.launches.filter(({ superseded }) => !superseded)).toEqual([]);
    expect(state.scaled!.m!.asleep_since_ms).toBeUndefined();
    expect(events.filter(({ kind }) => kind === 'scaled')).toMatchObject([
      { from: 2, to: 0, because: 'nobody has asked for a whole window' },
    ]);
    expect(site.seen).toMatchObject({ no_room: expect.stringMatching(/no\/such\/file/), own: { limit: 0 } });
  });

  it('keeps what is always on, where it is cheaper here', async () => {
    const site = deployed(2);
    await keep(site, { cost: 5 }, 40);
    const { launches } = site.operations.store.require('demo');
    expect(launches.filter(({ superseded }) => !superseded).map(({ launch_id }) => launch_id.at(-1))).toEqual(
      ['1'],
    );
  });
});

describe('that a model sleeps', () => {
  const none = { have: 0, claim: 0, serving: 0, wake_s: 30 };
  const before = deploymentState([], { scaled: { m: { changed_ms: 5, wake_s: 7 } } });

  it('is written down where no site has a replica, until one serves again', () => {
    const asleep = withSleep(before, 'm', none, 100)!;
    expect(asleep.scaled!.m).toEqual({ changed_ms: 5, wake_s: 30, asleep_since_ms: 100 });
    expect(withSleep(asleep, 'm', none, 200)).toBeUndefined();
    const waking = withSleep(asleep, 'm', { ...none, claim: 1 }, 300)!;
    expect(waking.scaled!.m).toMatchObject({ asleep_since_ms: 100, waking_since_ms: 300 });
    expect(withSleep(waking, 'm', { ...none, claim: 1, have: 1 }, 400)).toBeUndefined();
    const awake = withSleep(waking, 'm', { ...none, claim: 1, have: 1, serving: 1 }, 500)!;
    expect(awake.scaled!.m).toEqual({ changed_ms: 5, wake_s: 30 });
  });

  it('is not said while one site has a replica, or is about to have one', () => {
    for (const some of [{ have: 1 }, { claim: 1 }])
      expect(withSleep(before, 'm', { ...none, ...some }, 100)).toBeUndefined();
  });
});
