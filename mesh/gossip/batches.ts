import type { Entry } from '../entry.ts';
import type { Outgoing, PeerName } from './messages.ts';
import type { GossipSettings } from './settings.ts';

/** Entries as messages of news that are no larger than others take. */
export function batches(
  to: PeerName,
  entries: readonly Entry[],
  { entries_max, envelope_bytes_max }: Pick<GossipSettings, 'entries_max' | 'envelope_bytes_max'>,
): Outgoing[] {
  const out: Outgoing[] = [];
  let batch: Entry[] = [];
  let bytes = 0;
  for (const entry of entries) {
    const more = envelope_bytes(entry);
    if (batch.length === entries_max || (batch.length > 0 && bytes + more > envelope_bytes_max)) {
      out.push({ to, message: { kind: 'news', entries: batch } });
      batch = [];
      bytes = 0;
    }
    batch.push(entry);
    bytes += more;
  }
  if (batch.length > 0) out.push({ to, message: { kind: 'news', entries: batch } });
  return out;
}

function envelope_bytes({ record, tombstone }: Entry): number {
  return (record?.envelope.length ?? 0) + (tombstone?.envelope.length ?? 0);
}
