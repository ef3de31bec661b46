import type { Ledger } from '../../ledger/index.ts';
import type { UsageAnswer, UsageQuery, UsageRow } from '../../spec/usage.ts';

/** What a ledger answers while it is written. */
export async function askedUsage(ledger: Ledger, query: UsageQuery): Promise<UsageRow[]> {
  const asked = { of: 'requests', ...query, format: 'json', key_names: new Map() } as const;
  const answer = await ledger.ask('operator', asked);
  return (JSON.parse(new TextDecoder().decode(answer)) as UsageAnswer).usage;
}
