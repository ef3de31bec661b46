import type { TurnsReport } from '../../spec/turns-report.ts';
import { formatDuration } from './quantities.ts';

/** What to say behind `serving` of an engine that takes turns with others on its device; empty where that is all. */
export function turnWords({ waiting, refused, change_ms }: TurnsReport, isAsleep: boolean): string {
  const parts: string[] = [];
  if (isAsleep) parts.push(change_ms < 1000 ? 'asleep' : `asleep, awake in ${formatDuration(change_ms)}`);
  if (waiting > 0) parts.push(`${waiting} waiting for its turn`);
  if (refused > 0) parts.push(`${refused} refused for slo`);
  return parts.length === 0 ? '' : ` (${parts.join('; ')})`;
}
