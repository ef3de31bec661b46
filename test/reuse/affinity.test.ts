import { describe, expect, it } from 'vitest';
import { chooseByAffinity, estimateLoadSeconds } from '../../solver/reuse/affinity.ts';

const gb = 1e9;
const device = (
  name: string,
  reusable_bytes: number,
  more: { can_run?: boolean; tiers?: number[] } = {},
) => ({
  device: name,
  can_run: more.can_run ?? true,
  reusable_bytes,
  tier_bandwidths: more.tiers ?? [2 * gb],
});

describe('placement by affinity', () => {
  it('estimates (S − S′) / B with B the slowest tier', () => {
    expect(estimateLoadSeconds(8 * gb, 2 * gb, [6 * gb, 2 * gb, 3 * gb])).toBe(3);
    expect(estimateLoadSeconds(8 * gb, 9 * gb, [1 * gb])).toBe(0);
  });

  it('weighs what lies there against how fast the rest comes', () => {
    const devices = [device('slow', 4 * gb, { tiers: [1 * gb] }), device('fast', 0, { tiers: [8 * gb] })];
    expect(chooseByAffinity([{ id: 'r', model_bytes: 8 * gb, devices }])).toEqual([
      { id: 'r', device: 'fast', load_s: 1 },
    ]);
  });

  it('gives each device to one request, and leaves pending what no device can take', () => {
    const devices = [device('a', 3 * gb), device('b', 1 * gb), device('c', 9 * gb, { can_run: false })];
    const request = (id: string) => ({ id, model_bytes: 4 * gb, devices });
    expect(chooseByAffinity(['1', '2', '3'].map(request)).map(({ id, device }) => [id, device])).toEqual([
      ['1', 'a'],
      ['2', 'b'],
    ]);
  });
});
