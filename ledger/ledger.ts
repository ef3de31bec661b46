import { chmodSync, closeSync, existsSync, openSync } from 'node:fs';
import { dirname } from 'node:path';
import Database from 'better-sqlite3';
import { type Filesystem, filesystemOf } from '../host/filesystem.ts';
import type { HpcserveError } from '../spec/errors/error.ts';
import { Checkpointer } from './checkpointer.ts';
import type { ApiKey } from './keys.ts';
import { ledgerError } from './ledger-error.ts';
import type { RequestRecord, SessionFacts } from './record.ts';
import { findDamage, isDamage, type RepairReport, setAsideAndSave } from './repair.ts';
import { migrate } from './schema.ts';
import { queryUsage, type UsageQuery, type UsageRow } from './usage.ts';

export interface LedgerOptions {
  /** For tests; found by statfs where absent. */
  filesystem?: Filesystem;
  /**
   * How long records gather before a commit. 0: those of one turn of the event loop, which is right where a
   * commit is a write to memory (WAL). Without that log (`Filesystem.shared_memory`) every commit syncs, so records of
   * 20 ms share one: lower answers sooner when idle, higher spends less time in sync under load.
   */
  group_ms?: number;
  now_ms?: () => number;
  /** Called when a write fails, and when writing works again (without an error). */
  onHealth?: (error: HpcserveError | undefined) => void;
}

export interface OpenedLedger {
  ledger: Ledger;
  filesystem: Filesystem;
  /** Set where the file was damaged and has been replaced. */
  repair?: RepairReport;
}

/** Runs when a record is safe from the death of this process, or could not be written. */
export type Committed = (error: HpcserveError | undefined) => void;

const syncedGroup_ms = 20;
const retry_ms = 1000;
/** A commit takes at most this many records, so that one never blocks the event loop for long (about 4 ms). */
const groupLimit = 1024;
/**
 * A commit costs as much as six records. After one of so many records more of them are about to come, so the next
 * commit waits for up to so many turns of the event loop, or until so many share it. Turns are short: no answer waits
 * longer than the work of others takes in any case.
 */
const busyGroup = 3;
const busyTurns = 5;
const sharedGroup = 16;

/**
 * Opens, checks and, where needed, creates or repairs the ledger of one gateway. One writer at a time: the
 * gateway's folder lock sees to it, and without shared memory an exclusive lock on the file as well.
 *
 * Throws E_LEDGER_BUSY, E_LEDGER_VERSION, E_LEDGER_WRITE.
 */
export function openLedger(path: string, options: LedgerOptions = {}): OpenedLedger {
  const now_ms = options.now_ms ?? Date.now;
  const filesystem = options.filesystem ?? filesystemOf(dirname(path));
  try {
    if (!existsSync(path)) closeSync(openSync(path, 'a', 0o600));
    chmodSync(path, 0o600);
    let repair: RepairReport | undefined;
    let db = openChecked(path, filesystem);
    if (typeof db === 'string') {
      repair = setAsideAndSave(path, db, now_ms());
      chmodSync(path, 0o600);
      db = openChecked(path, filesystem);
      if (typeof db === 'string') throw new Error(`a new ledger is damaged: ${db}`);
    }
    const ledger = new Ledger(db, path, filesystem, options);
    return repair ? { ledger, filesystem, repair } : { ledger, filesystem };
  } catch (error) {
    throw ledgerError(error, path);
  }
}

/** The database ready for writing, or what is wrong with it. */
function openChecked(path: string, filesystem: Filesystem): Database.Database | string {
  const db = new Database(path, { timeout: 2000 });
  try {
    if (!filesystem.shared_memory) {
      db.pragma('locking_mode = EXCLUSIVE');
      db.pragma('journal_mode = TRUNCATE');
      db.exec('BEGIN EXCLUSIVE; COMMIT');
    } else {
      db.pragma('journal_mode = WAL');
      // A crash of the process loses nothing: what was committed is with the kernel. NORMAL syncs at checkpoints.
      db.pragma('wal_autocheckpoint = 0');
    }
    db.pragma('synchronous = NORMAL');
    const damage = findDamage(db);
    if (damage !== undefined) {
      db.close();
      return damage;
    }
    migrate(db, path);
    return db;
  } catch (error) {
    db.close();
    if (isDamage(error)) return error.message;
    throw error;
  }
}

interface Pending {
  record: RequestRecord;
  committed: Committed;
}

/**
 * The record of who used what: answered requests, and the sums of each key. Records are committed in groups; the
 * gateway sends the last bytes of an answer only after `committed` ran, so that even `kill -9` loses no answered
 * request.
 */
export class Ledger {
  readonly path: string;
  readonly #db: Database.Database;
  readonly #now_ms: () => number;
  readonly #group_ms: number;
  /** Records of the last commit. */
  #lastGroup = 0;
  readonly #onHealth: (error: HpcserveError | undefined) => void;
  readonly #insert: Database.Statement;
  readonly #insertSession: Database.Statement;
  readonly #begin: Database.Statement;
  readonly #commit: Database.Statement;
  readonly #insertSpent: Database.Statement;
  readonly #spentSince: Database.Statement;
  /** Rows of `sessions` by the gateway's own object, so that the hot path compares no strings. */
  readonly #sessionRefs = new WeakMap<SessionFacts, number>();
  readonly #checkpointer: Checkpointer | undefined;
  #pending: Pending[] = [];
  #scheduled = false;
  #failure: HpcserveError | undefined;
  #retry: NodeJS.Timeout | undefined;

  constructor(db: Database.Database, path: string, filesystem: Filesystem, options: LedgerOptions) {
    this.path = path;
    this.#db = db;
    this.#now_ms = options.now_ms ?? Date.now;
    this.#group_ms = options.group_ms ?? (filesystem.shared_memory ? 0 : syncedGroup_ms);
    this.#onHealth = options.onHealth ?? (() => {});
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#insert = db.prepare(
      `INSERT INTO requests (request_id, time_ms, key_id, endpoint, model, served_model, session_ref, status,
        stream, attempts, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, ttft_ms, duration_ms,
        finish_reason, error_code)
      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#insertSession = db.prepare(
      `INSERT INTO sessions (session_id, node, site, engine, deployment, job_id, slurm_account, first_seen_ms)
      VALUES (?, ?, ?, ?, ?, ?, ?, ?)
      ON CONFLICT (session_id) DO UPDATE SET node = excluded.node RETURNING ref`,
    );
    this.#insertSpent = db.prepare(
      `INSERT INTO spent (key_id, day, requests, tokens) VALUES (?, ?, ?, ?)
      ON CONFLICT (key_id, day) DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens`,
    );
    this.#spentSince = db.prepare(
      'SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(tokens), 0) AS tokens FROM spent WHERE key_id = ? AND day >= ?',
    );
    this.#checkpointer = filesystem.shared_memory ? new Checkpointer(db, path) : undefined;
  }

  /** Why the ledger cannot be written at present; undefined while it can. */
  get failure(): HpcserveError | undefined {
    return this.#failure;
  }

  /** Keys as they were kept before they had a folder of their own: see `KeyStore.adopt`. */
  formerKeys(): (Omit<ApiKey, 'settings'> & { hash: string })[] {
    const rows = this.#db.prepare('SELECT id, name, hash, created_at_ms, revoked_at_ms FROM keys').all() as {
      id: string;
      name: string;
      hash: string;
      created_at_ms: number;
      revoked_at_ms: number | null;
    }[];
    return rows.map(({ revoked_at_ms, ...row }) =>
      revoked_at_ms === null ? row : { ...row, revoked_at_ms },
    );
  }

  /** What a key has used since a day, counted from 1970 in UTC. */
  spentSince(key_id: string, day: number): { requests: number; tokens: number } {
    return this.#spentSince.get(key_id, day) as { requests: number; tokens: number };
  }

  usage(query: UsageQuery): UsageRow[] {
    return queryUsage(this.#db, query);
  }

  /** Queues a record; `committed` runs once, after the group it is in was committed or failed. */
  record(record: RequestRecord, committed: Committed): void {
    this.#pending.push({ record, committed });
    if (this.#scheduled) return;
    this.#scheduled = true;
    if (this.#group_ms === 0) this.#commitAfterTurns(this.#lastGroup >= busyGroup ? busyTurns : 1);
    else setTimeout(this.#commitGroup, this.#group_ms);
  }

  /** Commits in the last of so many turns of the event loop, or as soon as a commit is well shared. */
  #commitAfterTurns(turns: number): void {
    setImmediate(() => {
      if (turns === 1 || this.#pending.length >= sharedGroup) this.#commitGroup();
      else this.#commitAfterTurns(turns - 1);
    });
  }

  /** Commits what waits, folds the log into the file, and closes it. */
  async close(): Promise<void> {
    clearTimeout(this.#retry);
    while (this.#pending.length > 0) this.#commitGroup();
    await this.#checkpointer?.close();
    this.#db.close();
  }

  readonly #commitGroup = (): void => {
    const rest = this.#pending;
    const group = rest.length <= groupLimit ? rest : rest.slice(0, groupLimit);
    this.#pending = rest.length <= groupLimit ? [] : rest.slice(groupLimit);
    this.#scheduled = this.#pending.length > 0;
    this.#lastGroup = group.length;
    if (this.#scheduled) setImmediate(this.#commitGroup);
    if (group.length === 0) return;
    let failure: HpcserveError | undefined;
    try {
      this.#begin.run();
      for (const { record } of group) this.#insertRecord(record);
      this.#addSpent(group);
      this.#commit.run();
    } catch (error) {
      failure = ledgerError(error, this.path);
      this.#rollback();
    }
    this.#setFailure(failure);
    for (const { committed } of group) committed(failure);
    this.#checkpointer?.wrote(group.length);
  };

  #insertRecord(record: RequestRecord): void {
    this.#insert.run(
      record.request_id,
      record.time_ms,
      record.key_id,
      record.endpoint,
      record.model,
      record.served_model ?? null,
      record.session === undefined ? null : this.#sessionRef(record.session, record.time_ms),
      record.status,
      record.stream ? 1 : 0,
      record.attempts,
      record.prompt_tokens ?? null,
      record.completion_tokens ?? null,
      record.cached_tokens ?? null,
      record.reasoning_tokens ?? null,
      record.ttft_ms ?? null,
      record.duration_ms,
      record.finish_reason ?? null,
      record.error_code ?? null,
    );
  }

  #addSpent(group: readonly Pending[]): void {
    let requests = 0;
    let tokens = 0;
    for (const [index, { record }] of group.entries()) {
      requests++;
      tokens += (record.prompt_tokens ?? 0) + (record.completion_tokens ?? 0);
      const next = group[index + 1]?.record;
      const day = dayOf(record.time_ms);
      // One row for records in a row of one key: most often that is all of them.
      if (next && next.key_id === record.key_id && dayOf(next.time_ms) === day) continue;
      this.#insertSpent.run(record.key_id, day, requests, tokens);
      requests = 0;
      tokens = 0;
    }
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
        time_ms,
      ) as { ref: number };
      ref = row.ref;
      this.#newSessions.push(session);
      this.#sessionRefs.set(session, ref);
    }
    return ref;
  }

  /** Sessions first seen in the open transaction: forgotten again if it rolls back. */
  #newSessions: SessionFacts[] = [];

  #rollback(): void {
    for (const session of this.#newSessions) this.#sessionRefs.delete(session);
    if (this.#db.inTransaction) this.#db.exec('ROLLBACK');
  }

  #setFailure(failure: HpcserveError | undefined): void {
    this.#newSessions = [];
    if (failure === undefined && this.#failure === undefined) return;
    this.#failure = failure;
    this.#onHealth(failure);
    clearTimeout(this.#retry);
    if (failure !== undefined) this.#retry = setTimeout(this.#probe, retry_ms).unref();
  }

  /** Finds out by itself whether the ledger can be written again; requests are refused meanwhile. */
  readonly #probe = (): void => {
    try {
      // A page is really allocated and written: setting a pragma to its own value would succeed on a full disk.
      this.#db.exec(
        'BEGIN IMMEDIATE; CREATE TABLE probe (bytes BLOB); INSERT INTO probe VALUES (zeroblob(16384)); DROP TABLE probe; COMMIT',
      );
      this.#setFailure(undefined);
    } catch (error) {
      this.#rollback();
      this.#setFailure(ledgerError(error, this.path));
    }
  };
}

/** Days since 1970 in UTC. */
export function dayOf(time_ms: number): number {
  return Math.floor(time_ms / 86_400_000);
}
