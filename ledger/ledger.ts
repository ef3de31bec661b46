import { chmodSync, closeSync, existsSync, openSync } from 'node:fs';
import { dirname } from 'node:path';
import Database from 'better-sqlite3';
import { type Filesystem, filesystemOf } from '../host/filesystem.ts';
import type { HpcserveError } from '../spec/errors/error.ts';
import { type AuditEntry, readAudit } from './audit.ts';
import type { ApiKey } from './keys.ts';
import { ledgerError } from './ledger-error.ts';
import type { UsageQuestion } from './questions/question.ts';
import { UsageQuestions } from './questions/usage-questions.ts';
import type { RequestRecord } from './record.ts';
import { type RecordStore, TableStore } from './record-store.ts';
import { findDamage, isDamage, type RepairReport, setAsideAndSave } from './repair.ts';
import { migrate } from './schema.ts';
import { foldTail } from './tail/fold.ts';
import { removeTail } from './tail/tail-files.ts';
import type { Gap } from './tail/tail-line.ts';
import { TailStore } from './tail/tail-store.ts';
import { lockWriter } from './writer-lock.ts';

export interface LedgerOptions {
  /** For tests; found by statfs where absent. */
  filesystem?: Filesystem;
  /**
   * How long records gather before a commit. 0: those of one turn of the event loop, which is right where a
   * commit is a write to memory (WAL). Without that log (`Filesystem.shared_memory`) every commit syncs, so records of
   * 20 ms share one: lower answers sooner when idle, higher spends less time in sync under load.
   */
  group_ms?: number;
  /**
   * Records that wait in memory while the file cannot be written; beyond them requests are refused. Lower: less memory
   * (about 1 kB each); higher: a full disk is outlived for longer.
   */
  backlog_max?: number;
  now_ms?: () => number;
  /** Called when a write fails, and when writing works again (without an error). */
  onHealth?: (error: HpcserveError | undefined) => void;
  /** Called with what a `committed` threw: the others of its group are told all the same. Absent: a warning says it. */
  onThrown?: (thrown: unknown) => void;
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
/**
 * How long the tables may take to have what was answered, where they have to: for budgets, which are exact and during
 * which no request is answered, and for questions, which nobody else waits for. Usually it is some hundredths of a
 * second.
 */
const spentSettle_ms = 3000;
const usageSettle_ms = 5000;
/** A commit takes at most this many records, so that one never blocks the event loop for long (about 1 ms). */
const groupLimit = 1024;
/**
 * A commit costs as much as several records. After one of so many records more of them are about to come, so the next
 * commit waits for up to so many turns of the event loop, or until so many share it. Turns are short: no answer waits
 * longer than the work of others takes in any case.
 */
const busyGroup = 3;
const busyTurns = 5;
const sharedGroup = 16;

/**
 * Opens, checks and, where needed, creates or repairs the ledger of one gateway. One writer at a time: the
 * gateway's folder lock sees to it, and a lock of the system beside the file as well.
 *
 * Throws E_LEDGER_BUSY, E_LEDGER_VERSION, E_LEDGER_WRITE.
 */
export function openLedger(path: string, options: LedgerOptions = {}): OpenedLedger {
  const now_ms = options.now_ms ?? Date.now;
  const filesystem = options.filesystem ?? filesystemOf(dirname(path));
  let release: (() => void) | undefined;
  try {
    if (!existsSync(path)) closeSync(openSync(path, 'a', 0o600));
    chmodSync(path, 0o600);
    release = lockWriter(path);
    let repair: RepairReport | undefined;
    let db = openChecked(path, filesystem);
    if (typeof db === 'string') {
      repair = setAsideAndSave(path, db, now_ms());
      chmodSync(path, 0o600);
      db = openChecked(path, filesystem);
      if (typeof db === 'string') throw new Error(`a new ledger is damaged: ${db}`);
    }
    const ledger = new Ledger(db, path, filesystem, options, release);
    return repair ? { ledger, filesystem, repair } : { ledger, filesystem };
  } catch (error) {
    release?.();
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
    takeTail(db, path);
    return db;
  } catch (error) {
    db.close();
    if (isDamage(error)) return error.message;
    throw error;
  }
}

/** Moves into the tables what a process before this one had not; on a full disk, later. */
function takeTail(db: Database.Database, path: string): void {
  try {
    foldTail(db, path);
  } catch (error) {
    if (isDamage(error)) throw error;
    return;
  }
  removeTail(db, path, Number.POSITIVE_INFINITY);
}

interface Pending {
  record: RequestRecord;
  committed: Committed;
}

/** Records that were answered while the file could not be written. */
interface Backlog {
  since_ms: number;
  reason: HpcserveError;
  records: RequestRecord[];
}

/**
 * The record of who used what: answered requests, and the sums of each key and hour. Records are committed in groups;
 * the gateway sends the last bytes of an answer only after `committed` ran, so that even `kill -9` loses no answered
 * request. While the file cannot be written, records wait in memory and requests go on (a kill then loses what
 * waits); when it can again, they are written, and the time is kept in `gaps`.
 */
export class Ledger {
  readonly path: string;
  readonly #db: Database.Database;
  readonly #group_ms: number;
  readonly #backlog_max: number;
  readonly #now_ms: () => number;
  /** Records of the last commit. */
  #lastGroup = 0;
  readonly #onHealth: (error: HpcserveError | undefined) => void;
  readonly #onThrown: (thrown: unknown) => void;
  readonly #store: RecordStore;
  readonly #questions: UsageQuestions;
  readonly #spentSince: Database.Statement;
  readonly #release: () => void;
  #pending: Pending[] = [];
  #scheduled = false;
  #backlog: Backlog | undefined;
  #retry: NodeJS.Timeout | undefined;
  #foldFailure: HpcserveError | undefined;

  /** @param release gives the lock of its writer back */
  constructor(
    db: Database.Database,
    path: string,
    filesystem: Filesystem,
    options: LedgerOptions,
    release: () => void,
  ) {
    this.path = path;
    this.#db = db;
    this.#release = release;
    this.#now_ms = options.now_ms ?? Date.now;
    this.#group_ms = options.group_ms ?? (filesystem.shared_memory ? 0 : syncedGroup_ms);
    this.#backlog_max = options.backlog_max ?? 50_000;
    this.#onHealth = options.onHealth ?? (() => {});
    this.#onThrown = options.onThrown ?? ((thrown) => process.emitWarning(thrown as Error));
    this.#spentSince = db.prepare(
      `SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(tokens), 0) AS tokens,
        coalesce(sum(device_us), 0) / 1000000.0 AS device_s
      FROM spent WHERE key_id = ? AND day >= ?`,
    );
    this.#store = filesystem.shared_memory
      ? new TailStore(db, path, (failure) => this.#folded(failure))
      : new TableStore(db, this.#now_ms);
    this.#questions = new UsageQuestions({
      ledger: path,
      db,
      isReadBeside: filesystem.shared_memory,
      settled: () => this.#store.settled(usageSettle_ms),
    });
  }

  /** Why nothing more can be taken: the ledger cannot be written, and as many records as may wait do. */
  get failure(): HpcserveError | undefined {
    return this.#backlog && this.#backlog.records.length >= this.#backlog_max
      ? this.#backlog.reason
      : undefined;
  }

  /** Records that wait in memory since the file cannot be written; undefined while it can. */
  get behind(): { requests: number; reason: HpcserveError } | undefined {
    return this.#backlog && { requests: this.#backlog.records.length, reason: this.#backlog.reason };
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
  spentSince(key_id: string, day: number): { requests: number; tokens: number; device_s: number } {
    this.#store.settle(spentSettle_ms);
    return this.#spentSince.get(key_id, day) as { requests: number; tokens: number; device_s: number };
  }

  /**
   * Answers a question about all that was recorded before it, while others go on.
   *
   * @param asker has one question at a time answered
   * @returns UTF-8, in the format that is asked for
   * @throws E_KEY_QUESTIONS, E_GATEWAY_DRAINING, E_LEDGER_*
   */
  ask(asker: string, question: UsageQuestion): Promise<Uint8Array> {
    return this.#questions.ask(asker, question);
  }

  /** Notes what somebody did with keys. @throws E_LEDGER_WRITE, E_LEDGER_BUSY */
  audit(entry: Omit<AuditEntry, 'time_ms'>): void {
    try {
      this.#db
        .prepare('INSERT INTO audit (time_ms, actor, action, subject, details) VALUES (?, ?, ?, ?, ?)')
        .run(this.#now_ms(), entry.actor, entry.action, entry.subject, JSON.stringify(entry.details));
    } catch (error) {
      throw ledgerError(error, this.path);
    }
  }

  /** The newest entries first. */
  audited(limit: number): AuditEntry[] {
    return readAudit(this.#db, limit);
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
    await this.#questions.close();
    clearTimeout(this.#retry);
    while (this.#pending.length > 0) this.#commitGroup();
    if (this.#backlog) this.#catchUp();
    clearTimeout(this.#retry);
    await this.#store.close();
    this.#db.close();
    this.#release();
  }

  readonly #commitGroup = (): void => {
    const rest = this.#pending;
    const group = rest.length <= groupLimit ? rest : rest.slice(0, groupLimit);
    this.#pending = rest.length <= groupLimit ? [] : rest.slice(groupLimit);
    this.#scheduled = this.#pending.length > 0;
    this.#lastGroup = group.length;
    if (this.#scheduled) setImmediate(this.#commitGroup);
    if (group.length === 0) return;
    // What waits comes first: one that tries again each second is enough.
    let failure = this.#backlog?.reason;
    failure ??= this.#write(group.map(({ record }) => record));
    if (failure) this.#keepForLater(group, failure);
    else for (const { committed } of group) this.#tell(committed);
  };

  #tell(committed: Committed, error?: HpcserveError): void {
    try {
      committed(error);
    } catch (thrown) {
      this.#onThrown(thrown);
    }
  }

  /** @returns why not */
  #write(records: readonly RequestRecord[], gap?: Gap): HpcserveError | undefined {
    try {
      this.#store.write(records, gap);
      return undefined;
    } catch (error) {
      return ledgerError(error, this.path);
    }
  }

  /** Records are safe while the tables cannot be written, but nobody finds them there. */
  #folded(failure: HpcserveError | undefined): void {
    if (failure?.code === this.#foldFailure?.code) return;
    this.#foldFailure = failure;
    if (!this.#backlog) this.#onHealth(failure);
  }

  #keepForLater(group: readonly Pending[], reason: HpcserveError): void {
    if (!this.#backlog) {
      this.#backlog = { since_ms: this.#now_ms(), reason, records: [] };
      this.#onHealth(reason);
      this.#tryLater();
    }
    const { records } = this.#backlog;
    for (const { record, committed } of group) {
      const fits = records.length < this.#backlog_max;
      if (fits) records.push(record);
      this.#tell(committed, fits ? undefined : this.#backlog.reason);
    }
  }

  #tryLater(): void {
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#catchUp(), retry_ms).unref();
  }

  /** Writes what waits, as far as the file can be written again. */
  #catchUp(): void {
    const { records, since_ms, reason } = this.#backlog!;
    while (records.length > 0) {
      const group = records.slice(0, groupLimit);
      // One a group, so that what is said of a gap is true also where catching up is broken off.
      const gap = { since_ms, until_ms: this.#now_ms(), requests: group.length, reason: reason.message };
      const failure = this.#write(group, gap);
      if (failure) {
        this.#backlog!.reason = failure;
        this.#tryLater();
        return;
      }
      records.splice(0, group.length);
    }
    this.#backlog = undefined;
    this.#onHealth(undefined);
  }
}
