/** Who may answer at all: the grammar of what is asked, and whom it lets through. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  exclusion,
  type FilteredFacts,
  filtered,
  parseProviders,
  type RouteFilter,
  weightBits,
} from '../../../solver/routing/filter.ts';
import { parseQos, type Qos } from '../../../solver/routing/qos.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

describe('a quality of service', () => {
  it('is read as it is documented', () => {
    expect(parseQos('quantization>=8bit; devices=gpu,GH200; tier=stable; region=eu')).toEqual({
      quantization_bits_min: 8,
      devices: ['gpu', 'gh200'],
      tier: 'stable',
      regions: ['eu'],
    });
    expect(parseQos('  Quantization >= 4.5 bits ;TIER = Scavenger;')).toEqual({
      quantization_bits_min: 4.5,
      tier: 'scavenger',
    });
    expect(parseQos('')).toEqual({});
    expect(parseQos('region= eu , ch-1')).toEqual({ regions: ['eu', 'ch-1'] });
    expect(['wait=30s', 'wait = 1.5', 'wait=0'].map(parseQos)).toEqual(
      [30, 1.5, 0].map((wait_s) => ({ wait_s })),
    );
  });

  it.each([
    ['quantisation>=8bit', /did you mean quantization/],
    ['colour=blue', /terms are quantization, devices, tier, region/],
    ['quantization=8bit', /written quantization>=8bit/],
    ['quantization>=0', /written quantization>=8bit/],
    ['quantization>=eight', /written quantization>=8bit/],
    ['quantization>=8byte', /written quantization>=8bit/],
    ['devices>=gpu', /written devices=one/],
    ['devices=gpu,,cpu', /written devices=one/],
    ['devices=gpu GH200', /written devices=one/],
    ['wait>=3s', /written wait=30s/],
    ['wait=-1', /written wait=30s/],
    ['wait=3min', /written wait=30s/],
    ['tier=gold', /tier=stable or tier=scavenger/],
    ['tier=stable;tier=stable', /twice/],
    ['tier=stable;;region=eu', /nothing between/],
    [';', /nothing between/],
    ['tier', /a name, = or >=, and a value/],
    ['tier=', /a name, = or >=, and a value/],
    ['tier==stable', /tier=stable or/],
    ['__proto__=x', /the terms are|a name/],
    ['constructor=x', /the terms are/],
    ['devices=\u0000', /written devices=one/],
    [`region=${'x,'.repeat(600)}x`, /more than 1024/],
    [`region=${Array.from({ length: 33 }, () => 'x').join()}`, /written region=one/],
  ])('is refused with what it should be: %s', (text, because) => {
    try {
      parseQos(text);
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(HpcserveError);
      const { code, message, because: reasons } = error as HpcserveError;
      expect(code).toBe('E_REQUEST_QOS');
      expect([message, ...reasons].join(': ')).toMatch(because);
    }
  });

  it('is either read or refused, whatever is sent', () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.stringMatching(/^[a-z>=;, 0-9-]*$/)), (text) => {
        try {
          parseQos(text);
        } catch (error) {
          expect((error as HpcserveError).code).toBe('E_REQUEST_QOS');
        }
      }),
    );
  });

  it('means the same however it is spelled', () => {
    const names = fc.array(fc.stringMatching(/^[a-z0-9][a-z0-9._-]{0,8}$/), { minLength: 1, maxLength: 4 });
    const space = fc.constantFrom('', ' ', '  ');
    const qos = fc.record(
      {
        quantization_bits_min: fc.integer({ min: 1, max: 32 }),
        devices: names,
        tier: fc.constantFrom('stable' as const, 'scavenger' as const),
        regions: names,
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(qos, space, fc.boolean(), fc.boolean(), (wanted: Qos, gap, reversed, upper) => {
        const terms = [
          wanted.quantization_bits_min &&
            `quantization${gap}>=${gap}${wanted.quantization_bits_min}${gap}bit`,
          wanted.devices && `devices${gap}=${gap}${wanted.devices.join(`${gap},${gap}`)}`,
          wanted.tier && `tier${gap}=${gap}${wanted.tier}`,
          wanted.regions && `region${gap}=${gap}${wanted.regions.join(`,${gap}`)}`,
        ].filter((term) => typeof term === 'string');
        const text = (reversed ? terms.reverse() : terms).join(`${gap};${gap}`);
        expect(parseQos(upper ? text.toUpperCase() : text)).toEqual(wanted);
      }),
    );
  });
});

const alice = 'a'.repeat(32);
const bob = 'b'.repeat(32);

describe('trusted providers', () => {
  it('are fingerprints, or names that lead to some', () => {
    expect(parseProviders(`${alice}, alice@juelich`)).toEqual([alice, 'alice@juelich']);
    expect(parseProviders('alice@juelich, *@cscs')).toEqual(['alice@juelich', '*@cscs']);
    for (const bad of ['', 'a,,b', 'a b@c', '*', 'a*@b', '*@', '*@a*', 'x'.repeat(300), 'a,'.repeat(99)])
      expect(() => parseProviders(bad), bad).toThrow(
        expect.objectContaining({ code: 'E_REQUEST_PROVIDERS' }),
      );
  });
});

describe('bits of weights', () => {
  it.each([
    ['F16', 16],
    ['BF16', 16],
    ['Q8_0', 8.5],
    ['fp8', 8],
    ['IQ3_XXS', 3],
    ['IQ2_S', 2],
    ['gptq-4bit', 4.16],
    ['compressed-tensors-8bit', 8],
    ['W8A16', 8],
    ['auto', undefined],
    ['unknown', undefined],
    ['', undefined],
  ])('of %s are %s', (precision, bits) => {
    expect(weightBits(precision)).toBe(bits);
  });
});

describe('a filter', () => {
  const facts: FilteredFacts = {
    site: 'juelich',
    region: 'eu',
    provider: 'alice@juelich',
    provider_id: alice,
    tier: 'stable',
    devices: [
      { kind: 'gpu', model: 'A100-40GB' },
      { kind: 'gpu', model: 'A100-40GB' },
    ],
    precision: 'q8_0',
  };
  const everything: RouteFilter = { providers: [], qos: {} };
  const excluded = (
    filter: Partial<RouteFilter>,
    change: Partial<FilteredFacts> = {},
  ): string | undefined => {
    const reason = exclusion({ ...facts, ...change }, { ...everything, ...filter });
    return reason && `${reason.term}: ${reason.is}`;
  };

  it('lets everybody through that it says nothing about, and names what it does not', () => {
    expect(excluded({})).toBeUndefined();
    const isAlice = 'providers: provider alice@juelich (aaaaaaaa)';
    expect(excluded({ providers: [[bob]] })).toBe(isAlice);
    expect(excluded({ providers: [[alice], [alice, bob]] })).toBeUndefined();
    expect(excluded({ providers: [[alice], [bob]] })).toBe(isAlice);
    // A name is no proof, whatever it is.
    for (const name of ['alice@juelich', '*@juelich', 'undefined', ''])
      expect(excluded({ providers: [[name]] })).toBe(isAlice);
    const unproven = { provider_id: undefined };
    expect(excluded({ providers: [[alice]] }, unproven)).toBe('providers: provider alice@juelich (unproven)');
    expect(excluded({}, unproven)).toBeUndefined();
    expect(excluded({ qos: { tier: 'scavenger' } })).toBe('tier: tier stable');
    expect(excluded({ qos: { regions: ['us', 'eu'] } })).toBeUndefined();
    expect(excluded({ qos: { regions: ['juelich'] } }, { region: undefined })).toBeUndefined();
    expect(excluded({ qos: { regions: ['us'] } })).toBe('region: site juelich in region eu');
    expect(excluded({ qos: { devices: ['a100'] } })).toBeUndefined();
    expect(excluded({ qos: { devices: ['a10'] } })).toBe('devices: devices A100-40GB');
    expect(excluded({ qos: { devices: ['cpu', 'gpu'] } })).toBeUndefined();
    expect(excluded({ qos: { devices: ['cpu'] } }, { devices: [] })).toBe('devices: devices unknown');
    expect(excluded({ qos: { quantization_bits_min: 8 } })).toBeUndefined();
    expect(excluded({ qos: { quantization_bits_min: 16 } })).toBe('quantization: precision q8_0');
    expect(excluded({ qos: { quantization_bits_min: 1 } }, { precision: 'auto' })).toBe(
      'quantization: precision auto of unknown bits',
    );
  });

  it('keeps exactly those that no term excludes, and counts the others once each', () => {
    const some = fc.record({
      site: fc.constantFrom('a', 'b'),
      provider: fc.constantFrom('u@a', 'u@b'),
      provider_id: fc.constantFrom(alice, bob, undefined),
      tier: fc.constantFrom('stable' as const, 'scavenger' as const),
      devices: fc.constantFrom(
        [{ kind: 'cpu' as const, model: 'Xeon-8480' }],
        [{ kind: 'gpu' as const, model: 'GH200' }],
      ),
      precision: fc.constantFrom('f16', 'q4_0', 'auto'),
    });
    const filters = fc.record({
      providers: fc.constantFrom<string[][]>([], [[alice]], [[alice], [alice, bob]]),
      qos: fc.record(
        {
          quantization_bits_min: fc.constantFrom(4, 8),
          devices: fc.constantFrom<string[]>(['gpu'], ['xeon']),
          tier: fc.constantFrom('stable' as const, 'scavenger' as const),
          regions: fc.constantFrom<string[]>(['a'], ['a', 'b']),
        },
        { requiredKeys: [] },
      ),
    });
    fc.assert(
      fc.property(fc.array(some, { maxLength: 10 }), filters, (all, filter) => {
        const { kept, excluded: others } = filtered(all, (one) => one, filter);
        expect(kept).toEqual(all.filter((one) => exclusion(one, filter) === undefined));
        const count = [...others.values()].reduce((sum, value) => sum + value, 0);
        expect(kept.length + count).toBe(all.length);
        // Asking for less never excludes more.
        const looser = filtered(all, (one) => one, { ...filter, qos: {} }).kept;
        expect(looser.length).toBeGreaterThanOrEqual(kept.length);
      }),
    );
  });
});
