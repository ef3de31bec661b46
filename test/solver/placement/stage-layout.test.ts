import { expect, test } from 'vitest';
import { devicesForStages, type StageDevice } from '../../../solver/placement/stage-layout.ts';

const cuts = (...begins: number[]) => begins.map((begin, index) => ({ begin, end: begins[index + 1] ?? 18 }));
const on = (names: string, held: { begin: number; end: number }[], nodes = ''): StageDevice<string>[] =>
  [...names].map((device, index) => {
    const own = { device, node: nodes[index] ?? 'n' };
    return held[index] ? { ...own, held: held[index] } : own;
  });
const now_ms = 10_000_000;
const starts = {
  model: 'm',
  cv: 1,
  stage_bytes: [2e9, 2e9, 2e9, 2e9],
  stage_s: [0.01, 0.01, 0.01, 0.01],
  now_ms,
};

test('a stage that is split keeps its larger half, and the other goes to a device that has nothing', () => {
  expect(devicesForStages(cuts(0, 5, 9, 13), on('abcd', cuts(0, 9)), starts)?.devices).toEqual([...'acdb']);
});

test('stages that are merged lie where most of them was', () => {
  // Of [9, 18) c has five operators, d four.
  expect(devicesForStages(cuts(0, 9), on('abcd', cuts(0, 5, 9, 14)), starts)?.devices).toEqual(['a', 'c']);
});

test('the first stage stays, also where another device has more of it', () => {
  expect(devicesForStages(cuts(0, 13), on('abc', cuts(0, 3, 13)), starts)?.devices).toEqual(['a', 'c']);
});

test('devices that have nothing come before those that another stage leaves', () => {
  expect(devicesForStages(cuts(0, 1, 2), on('abcd', cuts(0, 2, 10)), starts)?.devices).toEqual([
    'a',
    'd',
    'b',
  ]);
});

test('fewer devices than stages are no layout', () => {
  expect(devicesForStages(cuts(0, 5, 9), on('ab', cuts(0, 9)), starts)).toBeUndefined();
});

test('a stage starts on the node whose memory has its weights, though another comes first and is emptier', () => {
  // b, c and d are on y and empty; e is on x, where a computes what is split.
  const laid = devicesForStages(cuts(0, 9), on('abcde', cuts(0), 'xyyyx'), starts);
  expect(laid?.devices).toEqual(['a', 'e']);
  expect(laid?.because).toEqual([
    { stage: 1, because: 'x had the model 0 s ago; loads from host in 0.25 s, by the server' },
  ]);
});

test('of nodes that have nothing now, the one that had the model lately; then where most is free', () => {
  const devices = on('abcdef', cuts(0), 'xyyzzz');
  expect(devicesForStages(cuts(0, 9), devices, starts)?.devices).toEqual(['a', 'd']);
  const lately = devices.map((device) =>
    device.node === 'y' ? { ...device, hosted_ms: now_ms - 60_000 } : device,
  );
  expect(devicesForStages(cuts(0, 9), lately, starts)?.devices).toEqual(['a', 'b']);
  // Two that start at once do not share the way into one node where another is as good.
  const even = on('abcde', cuts(0), 'xyyzz');
  expect(
    devicesForStages(cuts(0, 6, 12), even, { ...starts, stage_bytes: [8e9, 8e9, 8e9] })?.devices,
  ).toEqual(['a', 'b', 'd']);
});

test('stages keep out of the way of loads that are under way, as long as these are', () => {
  const devices = on('abc', cuts(0), 'xyz');
  const large = { ...starts, stage_bytes: [8e9, 8e9] };
  const first = devicesForStages(cuts(0, 9), devices, large)!;
  expect(first.devices).toEqual(['a', 'b']);
  expect(first.marks).toEqual([{ server: 'y', source: 'peer', end_ms: now_ms + 4000 }]);
  const [at, later] = [now_ms + 1000, now_ms + 5000].map((then_ms) =>
    devicesForStages(cuts(0, 9), devices, { ...large, now_ms: then_ms, marks: first.marks }),
  );
  expect(at!.devices).toEqual(['a', 'c']);
  expect(at!.marks).toHaveLength(2);
  expect(later!.devices).toEqual(['a', 'b']);
});

test('a stage starts on a device that other models leave alone, though its node is further', () => {
  // b and c are on x, where the weights are, and others are on them; d is on y and empty.
  const devices = on('abcd', cuts(0), 'xxxy').map((device) =>
    'bc'.includes(device.device) ? { ...device, models: ['other'] } : device,
  );
  const laid = devicesForStages(cuts(0, 9), devices, starts)!;
  expect(laid.devices).toEqual(['a', 'd']);
  expect(laid.because[0]!.because).toMatch(/^y .*; other models leave that device alone$/);
  // Two stages: one of them has to share, and does so where its weights are.
  const two = devicesForStages(cuts(0, 6, 12), devices, starts)!;
  expect([...two.devices].sort()).toEqual(['a', 'b', 'd']);
  expect(two.because.map(({ because }) => because.replace(/^.*; /, '')).sort()).toEqual([
    'beside other, since every free device has others',
    'other models leave that device alone',
  ]);
});
