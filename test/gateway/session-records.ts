import type { SessionRecord } from '../../spec/session-record.ts';

/** What a session that serves these models publishes. */
export function recordOf(session_id: string, models: readonly string[]): SessionRecord {
  return {
    session_id,
    public_key: '',
    lifecycle: 'SERVING',
    version: 0,
    started_at_ms: 0,
    metadata: {
      role: 'device-worker',
      node: 'n',
      hostname: 'n',
      site: 's',
      provider: 'p@s',
      tier: 'stable',
      engine: 'native',
      devices: [],
      models: models.map((name) => ({
        name,
        aliases: [],
        state: 'serving',
        precision: 'f16',
        context_tokens: 64,
      })),
      addresses: [],
    },
  };
}
