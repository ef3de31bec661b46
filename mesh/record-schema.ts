/**
 * What a record read from elsewhere must look like before anything is done with it. Bounds are generous for
 * real use and small enough that a hostile member cannot exhaust a reader.
 */
import { isIP } from 'node:net';
import { z } from 'zod';
import { poolNames } from '../spec/model-pools.ts';
import { scalingStatementSchema } from '../spec/scaling-statement.ts';
import { lifecycles, loadPhases, type SessionRecord } from '../spec/session-record.ts';

/** Control characters: they would act on terminals that show them, and end header fields that carry them. */
const printable = /^[^\p{Cc}]*$/u;
const text = z.string().max(1024).regex(printable, 'has control characters');
/** What answers carry in header fields, which are ASCII. */
const label = z
  .string()
  .max(256)
  .regex(/^[\x20-\x7e]*$/, 'is not printable ASCII');
const positive = z.number().positive().finite();
const count = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);

const address = z.object({
  host: z.string().refine(isDialableHost, 'not an address that can be connected to'),
  port: z.number().int().min(1).max(65535),
});

const device = z.object({
  kind: z.enum(['cpu', 'gpu', 'mig']),
  model: text,
  memory_bytes: count,
  isa: z.array(text).max(64),
  emulated: z.literal('cpu').optional(),
  cores: z.array(count).max(4096).optional(),
  uuid: text.optional(),
  // Requests are ordered by it, and no more: one that cannot be is as none.
  link: text.optional().catch(undefined),
});

const model = z.object({
  name: text,
  aliases: z.array(text).max(64),
  state: z.enum(['pending', 'loading', 'serving', 'stalled', 'draining', 'failed', 'unloaded']),
  precision: text,
  context_tokens: count,
  pool: z.enum(poolNames).optional(),
  slo: z.object({ ttft_ms: positive.optional(), tpot_ms: positive.optional() }).optional(),
  error: z.string().max(8192).regex(printable, 'has control characters').optional(),
  bytes_loaded: count.optional(),
  bytes_total: count.optional(),
  load_bytes_per_s: count.optional(),
  phase: z.enum(loadPhases).optional(),
  loading_since_ms: count.optional(),
  usual_load_s: positive.optional(),
});

/** Name of a peer: the base58 text of a libp2p peer id. Peers of one mesh are compared by it. */
const peerId = z.string().regex(/^[1-9A-HJ-NP-Za-km-z]{1,64}$/, 'not a peer id');

/** Text of a multiaddr that leads to one TCP port, directly or through a relay. */
const peerAddress = z.string().max(256).refine(isPeerAddress, 'not an address of a peer');

/** Unknown keys pass and are dropped: a newer member may say more than this one understands. */
export const sessionRecordSchema: z.ZodType<SessionRecord> = z.object({
  session_id: z.string().regex(/^[0-9a-f]{32}$/),
  public_key: z.string().max(128),
  lifecycle: z.enum(lifecycles),
  version: count,
  started_at_ms: count,
  metadata: z.object({
    role: z.enum(['node-agent', 'device-worker', 'engine', 'gateway']),
    deployment: text.optional(),
    launch_id: text.optional(),
    node_index: count.optional(),
    pipeline_group: text.optional(),
    unit: text.optional(),
    job_id: text.optional(),
    slurm_account: text.optional(),
    node: label,
    hostname: text,
    site: text,
    region: text.optional(),
    provider: text,
    tier: z.enum(['stable', 'scavenger']),
    engine: label.optional(),
    engine_version: text.optional(),
    devices: z.array(device).max(256),
    models: z.array(model).max(256),
    job_end_time_ms: count.optional(),
    addresses: z.array(address).max(16),
    peer: z.object({ id: peerId, addresses: z.array(peerAddress).max(16) }).optional(),
    // One of another version, or out of bounds, is as none: the session serves all the same.
    scaling: scalingStatementSchema.optional().catch(undefined),
  }),
});

/**
 * An IPv4 or IPv6 literal of one host, or a DNS name (RFC 1123). Unspecified, broadcast and multicast addresses
 * are no destinations; anything with other characters could change the meaning of a URL.
 */
export function isDialableHost(host: string): boolean {
  const version = isIP(host);
  if (version === 4) {
    const first = Number(host.split('.')[0]);
    return first > 0 && first < 224;
  }
  if (version === 6) return !/^ff/i.test(host) && !/^[0:]+$/.test(host) && !host.includes('%');
  if (/^[0-9.]+$/.test(host) || host.length > 253) return false;
  return host.split('.').every((label) => /^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$/.test(label));
}

/** `/ip4/10.0.0.1/tcp/4001`, also with ip6, dns4 or dns6, and with `/p2p/RELAY/p2p-circuit` behind it. */
function isPeerAddress(text: string): boolean {
  const match =
    /^\/(ip4|ip6|dns4|dns6)\/([^/]+)\/tcp\/([0-9]{1,5})(\/p2p\/[1-9A-HJ-NP-Za-km-z]{1,64}\/p2p-circuit)?$/.exec(
      text,
    );
  if (!match) return false;
  const [, kind, host, port] = match;
  const version = kind === 'ip4' ? 4 : kind === 'ip6' ? 6 : 0;
  return isIP(host!) === version && isDialableHost(host!) && Number(port) >= 1 && Number(port) <= 65_535;
}
