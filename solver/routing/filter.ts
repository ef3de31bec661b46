/** Who may answer at all: what a request, and the key it comes with, ask of a replica. */

import { HpcserveError } from '../../spec/errors/error.ts';
import { type DeviceDescription, describeProvider } from '../../spec/session-record.ts';
import { weightPrecisionIfKnown } from '../catalog/weight-precision.ts';
import type { Qos } from './qos.ts';

/** What is judged of a replica. */
export interface FilteredFacts {
  readonly site: string;
  readonly region?: string | undefined;
  /** `user@site`, a label. */
  readonly provider: string;
  /** Fingerprint of the provider's key; undefined where nothing proves it now. */
  readonly provider_id: string | undefined;
  readonly tier: 'stable' | 'scavenger';
  readonly devices: readonly Pick<DeviceDescription, 'kind' | 'model'>[];
  readonly precision: string;
}

export interface RouteFilter {
  /** Fingerprints of trusted providers; each list must have the replica's, and no list is no condition. */
  providers: readonly (readonly string[])[];
  qos: Qos;
  /** Tiers that the key may use; absent: all. */
  tiers?: readonly FilteredFacts['tier'][] | undefined;
  /** Nobody asked for the tier: the request is one that waits until idle nodes have a replica. */
  can_wait?: boolean;
}

/** Which term of a filter leaves a replica out, and what the replica is in that respect. */
export interface Exclusion {
  term: 'providers' | 'quantization' | 'devices' | 'tier' | 'region';
  /** Such as `precision q4_0`. */
  is: string;
}

const providers_max = 64;

/**
 * Trusted providers, separated by commas: fingerprints, or names (`user@site`, `*@site`) that the caller looks up.
 *
 * @throws E_REQUEST_PROVIDERS
 */
export function parseProviders(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  const bad = names.find((name) => name.length > 256 || !/^(\*@)?[\x21-\x29\x2b\x2d-\x7e]+$/.test(name));
  if (bad === undefined && names.length <= providers_max) return names;
  throw new HpcserveError('E_REQUEST_PROVIDERS', {
    what:
      bad === undefined
        ? `more than ${providers_max} providers are named`
        : `${JSON.stringify(bad.slice(0, 80))} is no provider`,
    because:
      'providers are written as fingerprints (32 hex digits) or as user@site, with commas between them',
    details: { param: 'x-hpcserve-providers' },
  });
}

/** Undefined where the replica may answer, else the first term that forbids it. */
export function exclusion(
  facts: FilteredFacts,
  { providers, qos, tiers }: RouteFilter,
): Exclusion | undefined {
  const { provider, provider_id } = facts;
  if (!providers.every((list) => provider_id !== undefined && list.includes(provider_id)))
    return { term: 'providers', is: `provider ${describeProvider(provider, provider_id)}` };
  const mayUse = tiers === undefined || tiers.includes(facts.tier);
  if (!mayUse || (qos.tier !== undefined && qos.tier !== facts.tier))
    return { term: 'tier', is: `tier ${facts.tier}` };
  if (qos.regions && !qos.regions.some((name) => isRegion(name, facts)))
    return { term: 'region', is: `site ${facts.site}${facts.region ? ` in region ${facts.region}` : ''}` };
  if (qos.devices && !areDevices(qos.devices, facts.devices)) {
    const models = [...new Set(facts.devices.map(({ model }) => model))];
    return { term: 'devices', is: models.length > 0 ? `devices ${models.join(', ')}` : 'devices unknown' };
  }
  if (qos.quantization_bits_min !== undefined) {
    const bits = weightBits(facts.precision);
    if (bits === undefined || bits < qos.quantization_bits_min)
      return {
        term: 'quantization',
        is: `precision ${facts.precision}${bits === undefined ? ' of unknown bits' : ''}`,
      };
  }
  return undefined;
}

/** Those that a filter lets through, and of the others how many there are by reason. */
export function filtered<T>(
  candidates: readonly T[],
  factsOf: (candidate: T) => FilteredFacts,
  filter: RouteFilter,
): { kept: T[]; excluded: Map<string, number> } {
  const kept: T[] = [];
  const excluded = new Map<string, number>();
  for (const candidate of candidates) {
    const reason = exclusion(factsOf(candidate), filter);
    if (!reason) kept.push(candidate);
    else {
      const words = `${reason.term} excludes ${reason.is}`;
      excluded.set(words, (excluded.get(words) ?? 0) + 1);
    }
  }
  return { kept, excluded };
}

/**
 * Bits a weight is kept in, scales included: by the catalog where it has the name, else by the number in the name
 * (IQ3_XXS, compressed-tensors-8bit, W8A16). Undefined where nothing tells.
 */
export function weightBits(precision: string): number | undefined {
  const known = weightPrecisionIfKnown(precision)?.bits_per_weight;
  if (known !== undefined) return known;
  const match =
    /(?:^|[^a-z0-9])(\d{1,2})-?bits?$/i.exec(precision) ??
    /^(?:i?q|tq|int|uint|fp|bf|f|w|mxfp|nf)(\d{1,2})/i.exec(precision);
  const bits = match ? Number(match[1]) : 0;
  return bits >= 1 && bits <= 64 ? bits : undefined;
}

/** Whether a name that a person wrote means this device: a kind, a catalog name, or its beginning (`a100`). */
export function isDevice(asked: string, { kind, model }: Pick<DeviceDescription, 'kind' | 'model'>): boolean {
  const a = asked.toLowerCase();
  const b = model.toLowerCase();
  return a === kind || a === b || b.startsWith(`${a}-`);
}

function areDevices(asked: readonly string[], devices: FilteredFacts['devices']): boolean {
  return devices.length > 0 && devices.every((device) => asked.some((name) => isDevice(name, device)));
}

function isRegion(name: string, { site, region }: FilteredFacts): boolean {
  return name === site.toLowerCase() || name === region?.toLowerCase();
}
