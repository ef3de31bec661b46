import type Database from 'better-sqlite3';
import { type AuditEntry, auditEntrySchema } from '../spec/audit.ts';

export type { AuditEntry } from '../spec/audit.ts';

/** What was done with keys, the newest first. */
export function readAudit(db: Database.Database, limit: number): AuditEntry[] {
  const rows = db
    .prepare(
      'SELECT time_ms, actor, action, subject, details FROM audit ORDER BY time_ms DESC, sequence DESC LIMIT ?',
    )
    .all(limit) as (Omit<AuditEntry, 'details'> & { details: string })[];
  return rows.map(({ details, ...row }) => ({
    ...row,
    details: auditEntrySchema.shape.details.parse(JSON.parse(details)),
  }));
}
