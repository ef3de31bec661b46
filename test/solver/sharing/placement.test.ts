import { describe, expect, it } from 'vitest';
import { newCandidates, standingCandidates } from '../../../solver/sharing/candidates.ts';
import { planConsolidation } from '../../../solver/sharing/consolidation.ts';
import type {
  ArrivingRequest,
  DeviceView,
  InstanceView,
  ModelLookup,
  RequestView,
} from '../../../solver/sharing/device-view.ts';
import { chooseEvictions, decideKvFate } from '../../../solver/sharing/eviction.ts';
import { planPreemption } from '../../../solver/sharing/preemption.ts';
import { placeRequest } from '../../../solver/sharing-simulator/place-request.ts';
import { cpuSpeed, decoding, device, exact, formulaProfile, gpuSpeed, instance, request } from './support.ts';

const settings = { ...exact, kv_tokens_min: 1000 };

const many = (name: string, count: number, changes: Partial<RequestView> = {}): RequestView[] =>
  Array.from({ length: count }, (_, at) =>
    decoding(`${name}${at}`, { first_token_ms: 3000, arrival_ms: 1500, ...changes }),
  );

const models: ModelLookup = (model, { kind }) => ({
  model,
  profile: formulaProfile(kind === 'cpu' ? cpuSpeed : gpuSpeed),
  weight_bytes: 10_000,
  kv_bytes_per_token: 1,
  load_ms: kind === 'cpu' ? 50 : 300,
});

const cpu = (id: string, instances: DeviceView['instances'], changes: Partial<DeviceView> = {}): DeviceView =>
  device(
    id,
    instances.map((one) => ({ ...one, profile: formulaProfile(cpuSpeed) })),
    { kind: 'cpu', compute: 'AMX', ...changes },
  );

const arriving = (model: string, changes: Partial<RequestView> = {}): ArrivingRequest => ({
  ...request('new', changes),
  model,
});

describe('candidates', () => {
  it('are CPUs first, then the fullest instance', () => {
    const devices = [
      device('g1', [instance('m@g1', many('a', 9))]),
      cpu('c1', [instance('m@c1', many('b', 2))]),
      device('g2', [instance('m@g2', many('c', 12)), instance('other@g2', many('d', 20))]),
      cpu('c2', [instance('m@c2', many('e', 5))]),
    ];
    const order = (changes: Partial<typeof settings>): string[] =>
      standingCandidates('m', devices, { ...settings, ...changes }).map((candidate) => candidate.instance.id);
    expect(order({})).toEqual(['m@c2', 'm@c1', 'm@g2', 'm@g1']);
    expect(order({ bin_packing: false })).toEqual(['m@c1', 'm@c2', 'm@g1', 'm@g2']);
    expect(order({ cpu_first: false })).toEqual(['m@g2', 'm@g1', 'm@c2', 'm@c1']);
  });

  it('for a new instance are used devices before empty ones, the fullest first', () => {
    const devices = [
      cpu('c-empty', []),
      cpu('c-full', [instance('a@c', many('a', 4))]),
      device('g-empty', []),
      device('g-half', [instance('b@g', many('b', 30))]),
      device('g-full', [instance('c@g', many('c', 1)), instance('d@g', many('d', 1))]),
    ];
    const order = (changes: Partial<typeof settings>): string[] =>
      newCandidates('m', devices, models, { ...settings, ...changes }).map(({ device }) => device.id);
    expect(order({})).toEqual(['c-full', 'c-empty', 'g-full', 'g-half', 'g-empty']);
    expect(order({ bin_packing: false })).toEqual(['c-empty', 'c-full', 'g-empty', 'g-half', 'g-full']);
    // Of GPUs the one that has the model soonest, by whole classes of time, whatever is on it.
    const nearer: ModelLookup = (model, view) => ({
      ...models(model, view)!,
      load_ms: view.id === 'g-empty' ? 30 : 300,
    });
    expect(newCandidates('m', devices, nearer, settings).map(({ device }) => device.id)).toEqual([
      'c-full',
      'c-empty',
      'g-empty',
      'g-full',
      'g-half',
    ]);
  });
});

describe('placement', () => {
  it('takes a CPU that meets the SLO, and a GPU where none does', () => {
    const devices = [device('g', []), cpu('c', [])];
    expect(placeRequest(arriving('m'), devices, models, 0, settings)).toMatchObject({
      place: 'new',
      device: { id: 'c' },
    });
    // 3900 tokens take a CPU 2 s at least, and its SLO says 2 s.
    const long = arriving('m', { input_tokens: 3900, prefill_tokens_left: 3900 });
    const placed = placeRequest(long, devices, models, 0, settings);
    expect(placed).toMatchObject({ place: 'new', device: { id: 'g' } });
    if (placed.place === 'new') expect(placed.admission.because).toBe('g (A100) loads m for it in 300 ms');
  });

  it('prefers an instance that stands to a new one', () => {
    const devices = [cpu('c', []), device('g', [instance('m@g', many('a', 2))])];
    const placed = placeRequest(arriving('m'), devices, models, 0, settings);
    expect(placed).toMatchObject({ place: 'instance', instance: { id: 'm@g' } });
    if (placed.place === 'instance')
      expect(placed.admission.because).toBe('m@g takes it as 3rd of its batch');
  });

  it('refuses with every device’s reason and a time', () => {
    const devices = [
      device('g', [instance('x@g', many('a', 1), { kv_bytes: 1000 })], { pool_bytes: 12_000 }),
    ];
    const refused = placeRequest(arriving('m'), devices, models, 0, settings);
    expect(refused).toMatchObject({ place: 'refused', refusals: [{ device: 'g' }] });
    if (refused.place === 'refused') {
      expect(refused.retry_after_ms).toBeGreaterThan(0);
      expect(refused.refusals[0]!.because).toMatch(/more than g can give/);
    }
  });
});

describe('preemption', () => {
  /** `m` has a batch of five and no room to grow; `small` has two requests beside it. */
  const tight = (small: number): DeviceView =>
    device(
      'g1',
      [
        instance('m@g1', many('a', 5, { input_tokens: 1000 }), { kv_bytes: 5500 }),
        instance('small@g1', many('b', small), { kv_bytes: 1000 + 600 * small }),
      ],
      { pool_bytes: 26_500 + 600 * small },
    );
  const newcomer = arriving('m', { input_tokens: 1500, prefill_tokens_left: 1500 });

  it('pushes a smaller neighbour to where all its requests are taken', () => {
    const devices = [tight(2), device('g2', [])];
    const placed = placeRequest(newcomer, devices, models, 0, settings);
    expect(placed).toMatchObject({
      place: 'preemption',
      instance: { id: 'm@g1' },
      victim: { id: 'small@g1' },
    });
    if (placed.place !== 'preemption') return;
    expect(placed.moves.map(({ request, device }) => [request, device])).toEqual([
      ['b0', 'g2'],
      ['b1', 'g2'],
    ]);
    expect(placed.because).toBe(
      'm@g1 (batch 5) takes the place of small@g1 (batch 2), whose requests go to g2',
    );
    expect(placeRequest(newcomer, devices, models, 0, { ...settings, preemption: false })).toMatchObject({
      place: 'new',
      device: { id: 'g2' },
    });
  });

  it('leaves equals alone, and those whose requests nobody takes', () => {
    const plan = (devices: DeviceView[]) =>
      planPreemption(newcomer, standingCandidates('m', devices, settings), devices, models, 0, settings);
    expect(plan([tight(2), device('g2', [])])).toBeDefined();
    expect(plan([tight(5), device('g2', [])])).toBeUndefined();
    expect(plan([tight(2)])).toBeUndefined();
    expect(plan([tight(2), device('g2', [], { pool_bytes: 5000 })])).toBeUndefined();
    // Their next token is due at once: nobody can load a model in that time.
    const hurried = tight(2);
    for (const one of hurried.instances[1]!.requests) one.first_token_ms = -2480;
    expect(plan([hurried, device('g2', [])])).toBeUndefined();
    // Nor where KV could travel to one that stands.
    const carry = { free_bytes: Number.POSITIVE_INFINITY, bytes_per_s: 1e9, latency_ms: 0 };
    hurried.instances[1] = { ...hurried.instances[1]!, carry };
    expect(plan([hurried, device('g2', [])])).toBeUndefined();
  });

  it('counts the requests it has placed already', () => {
    const room = device('g2', [instance('small@g2', many('c', 1), { kv_bytes: 1000 })], {
      pool_bytes: 12_200,
    });
    const plan = planPreemption(
      newcomer,
      standingCandidates('m', [tight(2), room], settings),
      [tight(2), room],
      models,
      0,
      settings,
    );
    // 1220 bytes for two of `small`, 1830 for three.
    expect(plan?.moves.map(({ instance }) => instance)).toEqual(['small@g2', 'small@g2']);
    const narrow = { ...room, pool_bytes: 11_500 };
    expect(
      planPreemption(
        newcomer,
        standingCandidates('m', [tight(2), narrow], settings),
        [tight(2), narrow],
        models,
        0,
        settings,
      ),
    ).toBeUndefined();
  });
});

describe('consolidation', () => {
  it('moves the fragment’s requests to the larger instance, and nothing where they do not fit', () => {
    const devices = [
      device('g1', [instance('m@g1', many('a', 2))]),
      device('g2', [instance('m@g2', many('b', 6))]),
    ];
    const plan = planConsolidation(devices, 0, settings);
    expect(plan).toMatchObject({ device: { id: 'g1' }, instance: { id: 'm@g1' } });
    expect(plan?.moves.map(({ instance }) => instance)).toEqual(['m@g2', 'm@g2']);
    expect(plan?.because).toBe('m@g1 (batch 2) is a fragment: m@g2 takes its requests');
    expect(planConsolidation([devices[0]!], 0, settings)).toBeUndefined();
    const full = {
      ...devices[1]!,
      pool_bytes: 20_000,
      budget_bytes: 20_000,
      instances: [{ ...devices[1]!.instances[0]!, kv_bytes: 3700 }],
    };
    expect(planConsolidation([devices[0]!, full], 0, settings)).toBeUndefined();
  });

  it('counts on KV that travels, where nothing has to be computed in time for the next token', () => {
    // Due in 100 ms, and its prompt takes 132 ms.
    const long = decoding('a', { input_tokens: 2000 });
    const carry = { free_bytes: Number.POSITIVE_INFINITY, bytes_per_s: 1e6, latency_ms: 20 };
    const plan = (from: Partial<InstanceView>) =>
      planConsolidation(
        [device('g1', [instance('m@g1', [long], from)]), device('g2', [instance('m@g2', many('b', 6))])],
        0,
        settings,
      );
    expect(plan({})).toBeUndefined();
    expect(plan({ carry })).toMatchObject({ device: { id: 'g1' }, moves: [{ instance: 'm@g2' }] });
    expect(plan({ carry: { ...carry, bytes_per_s: 1000 } })).toBeUndefined();
  });
});

describe('eviction', () => {
  it('takes those who can wait longest, as few as needed, and nobody who runs', () => {
    const view = device('d', [
      instance('a@d', [
        decoding('soon', { first_token_ms: -2400 }),
        decoding('later', { first_token_ms: 500, arrival_ms: 0 }),
      ]),
      instance('b@d', [decoding('latest', { first_token_ms: 900, arrival_ms: 0 }), request('empty')], {
        kv_bytes_per_token: 2,
      }),
    ]);
    const ids = (needed: number, busy: string[] = []): string[] =>
      chooseEvictions(view, needed, 0, ({ id }) => busy.includes(id)).map(({ request }) => request.id);
    expect(ids(1)).toEqual(['latest']);
    expect(ids(1021)).toEqual(['latest', 'later']);
    expect(ids(1, ['latest'])).toEqual(['later']);
    expect(ids(1e9)).toEqual(['latest', 'later', 'soon']);
    expect(chooseEvictions(view, 1, 0)[0]).toMatchObject({
      freed_bytes: 1020,
      because: 'it can wait longest: its next token is due in 3400 ms',
    });
  });

  it('parks KV where restoring is cheaper than computing, and it fits', () => {
    const place = { free_bytes: 1e9, bytes_per_s: 1e6, latency_ms: 5 };
    const profile = formulaProfile(cpuSpeed);
    // 510 tokens: 60 + 255 ms to compute; 102 kB at 1 MB/s: 107 ms.
    expect(decideKvFate(decoding('a'), 200, profile, [place])).toMatchObject({ do: 'park', restore_ms: 107 });
    expect(decideKvFate(decoding('a'), 2000, profile, [place])).toMatchObject({
      do: 'recompute',
      recompute_ms: expect.closeTo(315, 6),
    });
    expect(decideKvFate(decoding('a'), 200, profile, [{ ...place, free_bytes: 1000 }]).because).toMatch(
      /do not fit/,
    );
    expect(decideKvFate(request('a'), 200, profile, [place])).toMatchObject({ do: 'recompute' });
    expect(decideKvFate(decoding('a'), 200, profile, [])).toMatchObject({ do: 'recompute' });
  });

  it('parks KV in the place from which it is back first, of those that have room', () => {
    const profile = formulaProfile(cpuSpeed);
    const memory = { name: 'memory', free_bytes: 1e9, bytes_per_s: 10e6, latency_ms: 0 };
    const disk = { name: 'disk', free_bytes: 1e9, bytes_per_s: 1e6, latency_ms: 5 };
    const fate = (...places: (typeof memory)[]) => decideKvFate(decoding('a'), 200, profile, places);
    for (const places of [
      [memory, disk],
      [disk, memory],
    ])
      expect(fate(...places)).toMatchObject({ do: 'park', place: memory });
    expect(fate({ ...memory, free_bytes: 1000 }, disk)).toMatchObject({
      do: 'park',
      place: disk,
      restore_ms: 107,
    });
    // Neither has room: the better of them is what is said. And a disk that is too slow is no place.
    const full = fate({ ...memory, free_bytes: 1000 }, { ...disk, free_bytes: 90_000 });
    expect(full).toMatchObject({ do: 'recompute', because: '1 MiB do not fit the parking place' });
    expect(fate({ ...memory, free_bytes: 1000 }, { ...disk, bytes_per_s: 1e5 })).toMatchObject({
      do: 'recompute',
      because: 'restoring takes 1025 ms, computing 315 ms',
    });
  });
});
