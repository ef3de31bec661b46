import type Database from 'better-sqlite3';
import { addHourSql, addSpentSql } from './accounting-schema.ts';
import { HourSums, type Microseconds, wholeUnits } from './hour-sums.ts';
import type { RequestRecord, SessionFacts } from './record.ts';
import { SeriesIndex, type SeriesMembers } from './series-index.ts';
import { SpentSums } from './spent-sums.ts';
import type { Gap } from './tail/tail-line.ts';

/** Series that are remembered. Lower: less memory; higher: fewer are looked up again. */
const series_max = 20_000;

/**
 * Writes records into the tables of one ledger, and what they add to the sums. `write` is to be called within a
 * transaction, and `committed` or `rolledBack` behind it. The more records a transaction has, the less a record costs:
 * a series that has many is added to its hour once.
 */
export class RequestWriter {
  readonly #insert: Database.Statement;
  readonly #insertSession: Database.Statement;
  readonly #findSeries: Database.Statement;
  readonly #insertSeries: Database.Statement;
  readonly #insertHour: Database.Statement;
  readonly #insertSpent: Database.Statement;
  readonly #insertTrace: Database.Statement;
  readonly #forgetDay: Database.Statement;
  readonly #noteGap: Database.Statement;
  /** Rows of `sessions` by the gateway's own object, so that the hot path compares no strings. */
  #sessionRefs = new WeakMap<SessionFacts, number>();
  readonly #seriesRefs = new SeriesIndex();
  /** Of the open transaction: forgotten again if it rolls back. */
  #newSessions: SessionFacts[] = [];
  #newSeries: SeriesMembers[] = [];

  constructor(db: Database.Database) {
    this.#insert = db.prepare(
      `INSERT INTO request_rows (request_id, time_ms, series_ref, asked_model, status, stream, attempts, prompt_tokens,
        completion_tokens, cached_tokens, reasoning_tokens, ttft_us, duration_us, device_us, energy_mj, energy_estimated,
        finish_reason, error_code)
      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#insertSession = db.prepare(
      `INSERT INTO sessions (session_id, node, site, engine, deployment, job_id, slurm_account, tier, provider,
        provider_id, devices, device_count, first_seen_ms)
      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
      ON CONFLICT (session_id) DO UPDATE SET node = excluded.node, tier = excluded.tier, provider = excluded.provider,
        provider_id = excluded.provider_id, devices = excluded.devices, device_count = excluded.device_count
      RETURNING ref`,
    );
    const member =
      'key_id = ? AND user = ? AND project = ? AND endpoint = ? AND model = ? AND served_model = ? AND precision = ? AND session_ref = ?';
    this.#findSeries = db.prepare(`SELECT ref FROM series WHERE ${member}`).pluck();
    this.#insertSeries = db.prepare(
      `INSERT INTO series (key_id, user, project, endpoint, model, served_model, precision, session_ref, limits_key_id)
      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#insertHour = db.prepare(addHourSql);
    this.#insertSpent = db.prepare(addSpentSql);
    this.#noteGap = db.prepare('INSERT INTO gaps (since_ms, until_ms, requests, reason) VALUES (?, ?, ?, ?)');
    this.#forgetDay = db.prepare('DELETE FROM days WHERE day = ?');
    this.#insertTrace = db.prepare('INSERT INTO traces (sequence, parameters, prefix) VALUES (?, ?, ?)');
  }

  write(records: Iterable<RequestRecord>, ...gaps: (Gap | undefined)[]): void {
    const hours = new HourSums();
    const spent = new SpentSums();
    for (const record of records) {
      const series_ref = this.#seriesRef(record);
      const units = wholeUnits(record);
      hours.add(series_ref, record, units);
      spent.add(record, units.device_us);
      if (!record.counts_only) this.#insertRow(record, series_ref, units);
    }
    this.#insertSums(hours, spent);
    for (const gap of gaps) if (gap) this.#noteGap.run(gap.since_ms, gap.until_ms, gap.requests, gap.reason);
  }

  committed(): void {
    this.#forget();
    if (this.#seriesRefs.size > series_max) this.#seriesRefs.clear();
  }

  rolledBack(): void {
    for (const session of this.#newSessions) this.#sessionRefs.delete(session);
    for (const series of this.#newSeries) this.#seriesRefs.remove(series);
    this.#forget();
  }

  /** What is of one transaction alone. */
  #forget(): void {
    this.#newSessions = [];
    this.#newSeries = [];
  }

  #insertSums(hours: HourSums, spent: SpentSums): void {
    const days = new Set<number>();
    for (const { hour, series_ref, values } of hours.all()) {
      this.#insertHour.run(hour, series_ref, ...values);
      days.add(Math.floor(hour / 24));
    }
    // A block of such a day lacks what was just added.
    for (const day of days) this.#forgetDay.run(day);
    for (const { key_id, day, requests, tokens, device_us } of spent.all())
      this.#insertSpent.run(key_id, day, requests, tokens, device_us);
  }

  #insertRow(
    record: RequestRecord,
    series_ref: number,
    { ttft_us, duration_us, device_us, energy_mj }: Microseconds,
  ): void {
    const { lastInsertRowid } = this.#insert.run(
      record.request_id,
      record.time_ms,
      series_ref,
      record.session === undefined ? record.model : null,
      record.status,
      record.stream ? 1 : 0,
      record.attempts,
      record.prompt_tokens ?? null,
      record.completion_tokens ?? null,
      record.cached_tokens ?? null,
      record.reasoning_tokens ?? null,
      ttft_us ?? null,
      duration_us,
      record.device_s === undefined ? null : device_us,
      record.energy_j === undefined ? null : energy_mj,
      record.energy_estimated ? 1 : 0,
      record.finish_reason ?? null,
      record.error_code ?? null,
    );
    if (record.trace) this.#insertTrace.run(lastInsertRowid, record.trace.parameters, record.trace.prefix);
  }

  #seriesRef(record: RequestRecord): number {
    const known = this.#seriesRefs.find(record);
    if (known !== undefined) return known;
    const { session, key_id, user = '', project = '', endpoint, precision = '', served_model = '' } = record;
    const session_ref = session === undefined ? 0 : this.#sessionRef(session, record.time_ms);
    const model = session === undefined ? '' : record.model;
    const members = [key_id, user, project, endpoint, model, served_model, precision, session_ref];
    let ref = this.#findSeries.get(...members) as number | undefined;
    ref ??= Number(this.#insertSeries.run(...members, record.limits_key_id ?? null).lastInsertRowid);
    this.#newSeries.push(this.#seriesRefs.add(record, ref));
    return ref;
  }

  #sessionRef(session: SessionFacts, time_ms: number): number {
    let ref = this.#sessionRefs.get(session);
    if (ref === undefined) {
      const row = this.#insertSession.get(
        session.session_id,
        session.node,
        session.site,
        session.engine ?? null,
        session.deployment ?? null,
        session.job_id ?? null,
        session.slurm_account ?? null,
        session.tier ?? null,
        session.provider ?? null,
        session.provider_id ?? null,
        session.devices ?? null,
        session.device_count ?? null,
        time_ms,
      ) as { ref: number };
      ref = row.ref;
      this.#newSessions.push(session);
      this.#sessionRefs.set(session, ref);
    }
    return ref;
  }
}
