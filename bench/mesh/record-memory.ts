import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { openEntry } from '../../mesh/entry.ts';
import { launchScope, ProviderKey, SessionIdentity } from '../../mesh/index.ts';
import { sealRecord } from '../../mesh/record-codec.ts';
import { SessionTable } from '../../mesh/session-table.ts';

/** What a table keeps for one session with a GPU and a model: envelope, opened record, row; heap and buffers, bytes. */
export async function bytesPerRecord(records: number): Promise<number> {
  const networkKey = new Uint8Array(32).fill(1);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-bench-'));
  const provider = ProviderKey.loadOrCreate(join(folder, 'provider.key'));
  rmSync(folder, { recursive: true });
  const seal = (from: number, count: number): Promise<Uint8Array[]> =>
    Promise.all(Array.from({ length: count }, (_, at) => sealed(from + at, networkKey, provider)));
  const envelopes = await seal(0, records);
  const collect = garbageCollector();
  const used = async (): Promise<number> => {
    // Keys that were looked at once are freed by the second round.
    for (let round = 0; round < 3; round++) {
      collect();
      await new Promise((resolve) => setImmediate(resolve));
    }
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  // What is loaded and compiled for the first ones is no record's; those are of other nodes.
  fill(new SessionTable(), await seal(records, 256), networkKey);
  const table = new SessionTable();
  const before = await used();
  fill(table, envelopes, networkKey);
  const opened = ((await used()) - before) / records;
  const envelope = envelopes.reduce((sum, { length }) => sum + length, 0) / records;
  return Math.round(opened + envelope + (table.size === records ? 0 : Number.NaN));
}

/** The signed record of a replica of a model; no two are of the same node. */
async function sealed(at: number, networkKey: Uint8Array, provider: ProviderKey): Promise<Uint8Array> {
  const identity = await SessionIdentity.create();
  const public_key = Buffer.from(identity.public_key).toString('base64');
  const host = `10.0.${at >> 8}.${at & 255 || 1}`;
  const record = {
    session_id: identity.session_id,
    public_key,
    lifecycle: 'SERVING' as const,
    version: 3,
    started_at_ms: 1_700_000_000_000,
    metadata: {
      role: 'engine' as const,
      deployment: 'chat',
      launch_id: '0123456789abcdef',
      unit: `chat-${at}`,
      job_id: String(100_000 + at),
      node: `nid${String(at).padStart(6, '0')}`,
      hostname: `nid${String(at).padStart(6, '0')}`,
      site: 'cluster',
      provider: 'group@cluster',
      tier: 'stable' as const,
      engine: 'vllm',
      devices: [{ kind: 'gpu' as const, model: 'GH200', memory_bytes: 96e9, isa: ['9.0'] }],
      models: [
        {
          name: 'a-model-of-8b',
          aliases: ['chat'],
          state: 'serving' as const,
          precision: 'bf16',
          context_tokens: 8192,
        },
      ],
      job_end_time_ms: 1_700_000_100_000,
      addresses: [{ host, port: 40_000 }],
      peer: {
        id: `12D3KooW${String(at).padStart(44, '1').replaceAll('0', 'o')}`,
        addresses: [`/ip4/${host}/tcp/40001`],
      },
    },
  };
  // One launch of a provider is a replica, or some of them.
  const delegation = provider.delegate({
    name: record.metadata.provider,
    scope: launchScope(record.metadata.launch_id),
    not_after_s: 1_800_000_000,
  });
  const credential = delegation.certify(identity.public_key);
  return Uint8Array.from(sealRecord(record, identity, networkKey, credential));
}

function fill(table: SessionTable, envelopes: readonly Uint8Array[], networkKey: Uint8Array): void {
  for (const record of envelopes) table.merge(openEntry({ record }, networkKey), 'gossip');
  table.snapshot();
}

function garbageCollector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}
