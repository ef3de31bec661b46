/** A site's own device figures, as a JSON file: entries by name, in full or as changes to the catalog's. */
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import type { DeviceOverrides } from '../../solver/catalog/devices.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

const positive = z.number().positive();
const families = [
  'pascal',
  'volta',
  'turing',
  'ampere',
  'ampere-gddr',
  'ada',
  'hopper',
  'blackwell',
  'blackwell-gddr',
  'cdna2',
  'cdna3',
  'cdna4',
  'cpu-amx',
  'cpu',
] as const;
const entry = z
  .strictObject({
    aliases: z.array(z.string()),
    vendor: z.enum(['nvidia', 'amd', 'intel', 'other']),
    kind: z.enum(['gpu', 'cpu']),
    family: z.enum(families),
    peak_flops_per_s: z.partialRecord(z.enum(['fp32', 'fp16', 'bf16', 'fp8', 'int8', 'fp4']), positive),
    memory_bytes: positive,
    memory_bandwidth_bytes_per_s: positive,
    link: z.strictObject({ name: z.string(), bandwidth_bytes_per_s: positive, devices: positive.int() }),
    tdp_w: positive,
    cores: positive.int(),
    compute_capability: z.string(),
    source: z.string(),
  })
  .partial();

/** @throws E_SIMULATION_INPUT naming the keys that are wrong. */
export function readDeviceFile(path: string, name: string): DeviceOverrides {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: `${name} cannot be read as a file of devices`,
      because: cause instanceof Error ? cause.message : String(cause),
      cause,
    });
  }
  const parsed = z.record(z.string(), entry).safeParse(value);
  if (parsed.success) return withoutAbsent(parsed.data);
  throw new HpcserveError('E_SIMULATION_INPUT', {
    what: `${name} is no file of devices`,
    because: parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`),
  });
}

/** zod types absent keys as undefined; a change must not undo what the catalog knows. */
function withoutAbsent(entries: Record<string, object>): DeviceOverrides {
  return Object.fromEntries(
    Object.entries(entries).map(([name, change]) => [
      name,
      Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined)),
    ]),
  );
}
