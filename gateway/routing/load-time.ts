import type { SessionModel } from '../../spec/session-record.ts';

/** What takes longer than the last time may be over at any moment. */
const overdue_s = 1;

/**
 * When a replica that loads is expected to serve, seconds from `now_ms` (Unix), by how long its load took the last
 * time; undefined where that is not known.
 */
export function loadsIn_s(
  { loading_since_ms, usual_load_s }: Pick<SessionModel, 'loading_since_ms' | 'usual_load_s'>,
  now_ms: number,
): number | undefined {
  if (loading_since_ms === undefined || usual_load_s === undefined) return undefined;
  return Math.max(overdue_s, usual_load_s - Math.max(0, now_ms - loading_since_ms) / 1000);
}
