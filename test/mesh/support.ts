import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionIdentity } from '../../mesh/index.ts';
import type { SessionMetadata, SessionRecord } from '../../spec/session-record.ts';

export const metadata: SessionMetadata = {
  role: 'engine',
  node: 'n1',
  hostname: 'n1.cluster',
  site: 'test',
  provider: 'someone@test',
  tier: 'stable',
  devices: [{ kind: 'cpu', model: 'Xeon', memory_bytes: 2 ** 34, isa: ['avx2'], cores: [0, 1] }],
  models: [],
  addresses: [{ host: '127.0.0.1', port: 4433 }],
};

export function recordOf(identity: SessionIdentity, change: Partial<SessionRecord> = {}): SessionRecord {
  return {
    session_id: identity.session_id,
    public_key: Buffer.from(identity.public_key).toString('base64'),
    lifecycle: 'SERVING',
    version: 0,
    started_at_ms: 1_700_000_000_000,
    metadata,
    ...change,
  };
}

/** A folder that is gone when the test ends. */
export async function scratchFolder(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'hpcserve-test-'));
  // Workers whose agent was killed may write until they have noticed.
  const gone = { recursive: true, force: true, maxRetries: 10 };
  return { path, [Symbol.asyncDispose]: () => rm(path, gone) };
}

/** Waits until `check` gives something truthy. */
export async function eventually<T>(
  check: () => T | Promise<T>,
  what: string,
  deadline_ms = 15_000,
): Promise<NonNullable<T>> {
  const end = performance.now() + deadline_ms;
  for (;;) {
    const value = await check();
    if (value) return value as NonNullable<T>;
    if (performance.now() > end) throw new Error(`not within ${deadline_ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
}
