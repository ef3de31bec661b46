import { type FSWatcher, watch } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { every } from '../host/every.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { systemMessage } from '../spec/errors/system-error.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import type { Credential } from './credential.ts';
import { hasLeft, isGossiped, openEntry } from './entry.ts';
import { loadOrCreateNetworkKey, readNetworkKey } from './network-key.ts';
import { type RecordMark, RecordRejected, sealRecord, sealTombstone } from './record-codec.ts';
import type { PeerDescription, Registry, RegistryChange, RegistryStatus } from './registry.ts';
import { RendezvousFolder } from './rendezvous-folder.ts';
import { SessionIdentity } from './session-identity.ts';
import { SessionTable } from './session-table.ts';

export interface RendezvousOptions {
  /**
   * Makes folder and network key where there are none. False on compute nodes: a missing folder there means an
   * unmounted filesystem.
   */
  create: boolean;
  /**
   * Pause between looks. Lower: changes are seen sooner; higher: less load on the metadata server. One look is one stat
   * while nothing changes.
   */
  poll_ms?: number;
  /** A look at every file at least this often, whatever the folder's mtime says. */
  thorough_ms?: number;
  /** Least time between looks that callers ask for (`refresh`): bounds what strangers can cause. */
  refresh_min_ms?: number;
  /**
   * How long a LEFT record is kept before any member removes its files. Higher: late readers learn why; lower: fewer
   * files.
   */
  compact_after_ms?: number;
  /** How long a session whose file vanished is kept. */
  forget_after_ms?: number;
  /** A look that takes longer is reported: the filesystem hangs. */
  hang_ms?: number;
  /** Monotonic clock. */
  now_ms?: () => number;
}

/** What this member noticed of a session's files. */
interface Notice {
  left_since_ms?: number;
  missing_since_ms?: number;
}

interface OwnRecord {
  session_id: string;
  envelope: Uint8Array;
  stored: boolean;
}

const rejections_kept = 32;
/** Pause after a notice of inotify, so that a burst of renames is one look. */
const hint_pause_ms = 30;

/**
 * Membership by a folder that all members reach: one file a session, polled. Watches (inotify) shorten the wait
 * where they work and are never relied on. All decisions in time use this host's monotonic clock.
 */
export class RendezvousRegistry implements Registry {
  readonly network_key: Uint8Array;
  readonly #folder: RendezvousFolder;
  readonly #options: Required<Omit<RendezvousOptions, 'create'>>;
  /** Where records of the folder, of the gossip and of this process meet. */
  readonly table = new SessionTable();
  readonly #notices = new Map<string, Notice>();
  readonly #own = new Map<string, OwnRecord>();
  /** Sessions that were compacted and came again, and when they did. */
  readonly #ended_again_ms = new Map<string, number>();
  #reporter: SessionIdentity | undefined;
  readonly #temporary_since_ms = new Map<string, number>();
  readonly #peerCallbacks = new Set<() => void>();
  readonly #disputeCallbacks = new Set<(session_id: string, seen: RecordMark) => void>();
  #peer: PeerDescription | undefined;
  readonly #statusCallbacks = new Set<(status: RegistryStatus) => void>();
  #status: RegistryStatus = { state: 'ok', rejected: {}, recent_rejections: [] };
  #watcher: FSWatcher | undefined;
  #stopPolling: () => void = () => undefined;
  #isPolling = false;
  #hint: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #requested: Promise<void> | undefined;
  #look_began_ms = Number.NEGATIVE_INFINITY;
  #thorough_began_ms = Number.NEGATIVE_INFINITY;
  #closed = false;

  private constructor(meshFolder: string, networkKey: Uint8Array, options: RendezvousOptions) {
    this.network_key = networkKey;
    this.#options = {
      poll_ms: 1000,
      thorough_ms: 15_000,
      refresh_min_ms: 500,
      compact_after_ms: 600_000,
      forget_after_ms: 60_000,
      hang_ms: 10_000,
      now_ms: () => performance.now(),
      ...options,
    };
    this.#folder = new RendezvousFolder(meshFolder, networkKey, this.#options.now_ms);
    // What this process says of others in the gossip is for readers of the folder too, where it is their session.
    this.table.onStep(({ session_id, before, after, source }) => {
      const tombstone = after?.tombstone;
      if (source !== 'own' || !tombstone || tombstone === before?.tombstone) return;
      if (before?.record && !this.table.sourcesOf(session_id).includes('folder')) return;
      this.#exclusively(() => this.#folder.write(session_id, 'left', tombstone.envelope)).catch(
        (error: unknown) => process.emitWarning(error as Error),
      );
    });
  }

  /**
   * Joins the mesh of a folder and reads it once.
   *
   * @throws HpcserveError E_MESH_KEY, E_MESH_FOLDER
   */
  static async open(meshFolder: string, options: RendezvousOptions): Promise<RendezvousRegistry> {
    const key = options.create ? await loadOrCreateNetworkKey(meshFolder) : await readNetworkKey(meshFolder);
    if (!key) {
      throw new HpcserveError('E_MESH_FOLDER', {
        what: `${meshFolder} holds no mesh on this host`,
        because: 'there is no network.key in it',
        try: 'check that this host mounts the filesystem of the mesh folder',
        details: { folder: meshFolder },
      });
    }
    const registry = new RendezvousRegistry(meshFolder, key, options);
    await registry.#look();
    if (registry.#status.state !== 'ok') {
      throw new HpcserveError('E_MESH_FOLDER', {
        what: `the mesh folder ${meshFolder} cannot be used`,
        because: registry.#status.reason ?? registry.#status.state,
        details: { folder: meshFolder },
      });
    }
    registry.#schedulePoll();
    return registry;
  }

  get peer(): PeerDescription | undefined {
    return this.#peer;
  }

  /** Set when this process takes part in the gossip, or does no more. */
  set peer(peer: PeerDescription | undefined) {
    this.#peer = peer;
    for (const callback of this.#peerCallbacks) callback();
  }

  onPeer(callback: () => void): () => void {
    this.#peerCallbacks.add(callback);
    return () => this.#peerCallbacks.delete(callback);
  }

  onDisputed(callback: (session_id: string, seen: RecordMark) => void): () => void {
    this.#disputeCallbacks.add(callback);
    return () => this.#disputeCallbacks.delete(callback);
  }

  /** Somebody says of an own session that it is gone, as far as a record of it. */
  dispute(session_id: string, seen: RecordMark): void {
    for (const callback of this.#disputeCallbacks) callback(session_id, seen);
  }

  async publish(record: SessionRecord, identity: SessionIdentity, credential?: Credential): Promise<void> {
    const envelope = sealRecord(record, identity, this.network_key, credential);
    const session_id = record.session_id;
    // Read back what others will read: a record they would reject must fail here, where it is made.
    this.table.merge(openEntry({ record: envelope }, this.network_key), 'own');
    const own: OwnRecord = { session_id, envelope, stored: false };
    this.#own.set(session_id, own);
    await this.#exclusively(() => this.#storeOwn(own));
  }

  async retire(sessionId: string, evidence: string, reporter: SessionIdentity): Promise<void> {
    const tombstone = { session_id: sessionId, evidence: evidence.slice(0, 1024) };
    const envelope = sealTombstone(tombstone, reporter, this.network_key);
    // Stored as every tombstone that this process makes; see the constructor.
    this.table.merge(openEntry({ tombstone: envelope }, this.network_key), 'own');
    await this.#running;
  }

  snapshot(): SessionRecord[] {
    return this.table.snapshot();
  }

  get(sessionId: string): SessionRecord | undefined {
    return this.table.get(sessionId);
  }

  status(): RegistryStatus {
    return this.#status;
  }

  refresh(): Promise<void> {
    return this.#request(this.#options.refresh_min_ms, true);
  }

  onChange(callback: (changes: RegistryChange[]) => void): () => void {
    return this.table.onChange(callback);
  }

  onStatus(callback: (status: RegistryStatus) => void): () => void {
    this.#statusCallbacks.add(callback);
    return () => this.#statusCallbacks.delete(callback);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#stopPolling();
    clearTimeout(this.#hint);
    this.#watcher?.close();
    this.#watcher = undefined;
    await this.#requested;
    await this.#running;
  }

  // --- looking ---------------------------------------------------------------------------------------------

  #schedulePoll(): void {
    if (!this.#closed) this.#stopPolling = every(this.#options.poll_ms, () => void this.#lookUnasked());
  }

  /**
   * A look nobody waits for. Where the last has not ended there is none: a filesystem that is slow is not asked without
   * a pause. A defect (a filesystem that is away is none, see #look) must not pass in silence.
   */
  async #lookUnasked(): Promise<void> {
    if (this.#isPolling) return;
    this.#isPolling = true;
    try {
      await this.#request(0, false);
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : new Error(String(error)));
    } finally {
      this.#isPolling = false;
    }
  }

  /** One look, after the running one; callers that come before it begins share it. */
  #request(least_pause_ms: number, thorough: boolean): Promise<void> {
    if (this.#closed) return Promise.resolve();
    if (thorough) this.#thorough_began_ms = Number.NEGATIVE_INFINITY;
    this.#requested ??= (async () => {
      await this.#running;
      const pause_ms = this.#look_began_ms + least_pause_ms - this.#options.now_ms();
      if (pause_ms > 0) await delay(pause_ms);
      this.#requested = undefined;
      if (!this.#closed) await this.#look();
    })();
    return this.#requested;
  }

  /** Filesystem work runs one after the other, so that an older write never lands after a newer one. */
  #exclusively(work: () => Promise<void>): Promise<void> {
    const done = this.#running.then(async () => {
      const hang = setTimeout(
        () => this.#report('unreachable', `the filesystem has not answered for ${this.#options.hang_ms} ms`),
        this.#options.hang_ms,
      );
      hang.unref();
      try {
        await work();
      } catch (error) {
        if (!isFilesystemError(error)) throw error;
        this.#report('unreachable', messageOf(error));
      } finally {
        clearTimeout(hang);
      }
    });
    this.#running = done.catch(() => undefined); // `done` carries the error to its caller
    return done;
  }

  #look(): Promise<void> {
    return this.#exclusively(async () => {
      const now_ms = this.#options.now_ms();
      this.#look_began_ms = now_ms;
      const thorough = now_ms - this.#thorough_began_ms >= this.#options.thorough_ms;
      if (thorough) {
        const key = await this.#folder.checkKey();
        if (key !== 'same') {
          this.#folder.forget();
          if (key === 'other') this.#report('foreign_key', 'network.key now holds another key');
          else this.#report('unreachable', 'network.key is not there any more');
          return;
        }
        await this.#folder.prepare();
      }
      const scan = await this.#folder.scan(thorough);
      if (thorough) this.#thorough_began_ms = now_ms;

      for (const { file, rejection } of scan.rejected) {
        this.#reject(file, rejection);
        this.#expectOwn(file, undefined);
      }
      for (const { file, bytes } of scan.changed) {
        this.#expectOwn(file.name, bytes);
        try {
          const sealed = file.kind === 'rec' ? { record: bytes } : { tombstone: bytes };
          const entry = openEntry(sealed, this.network_key);
          requireSame(entry.session_id, file.session_id);
          if (this.table.merge(entry, 'folder') === 'forgotten' && entry.record) {
            await this.#repeatEnd(file.session_id);
            throw new RecordRejected('replayed', 'its session is over and was compacted');
          }
        } catch (error) {
          if (!(error instanceof RecordRejected)) throw error;
          this.#reject(file.name, error);
        }
      }
      for (const own of this.#own.values()) {
        if (!own.stored || !scan.present.has(`${own.session_id}.rec`)) await this.#storeOwn(own);
      }
      await this.#tidy(scan.present, scan.temporary);
      this.#report('ok');
      this.#watch();
    });
  }

  /** An own record that somebody or something else wrote (an older one put back, a part lost) is stored again. */
  #expectOwn(file: string, bytes: Uint8Array | undefined): void {
    const own = file.endsWith('.rec') ? this.#own.get(file.slice(0, -'.rec'.length)) : undefined;
    if (own && !(bytes && Buffer.compare(bytes, own.envelope) === 0)) own.stored = false;
  }

  async #storeOwn(own: OwnRecord): Promise<void> {
    if (this.#own.get(own.session_id) !== own) return; // a newer one is on its way
    if (this.table.entry(own.session_id)?.tombstone) return; // declared gone: the owner comes back under a new id
    if (this.#status.state === 'foreign_key') return;
    own.stored = false;
    await this.#folder.write(own.session_id, 'rec', own.envelope);
    own.stored = true;
  }

  /**
   * A record of a session that was over and compacted is there again: its process may have been stopped all the while,
   * and must learn of it to come back under a new session. Its files go as those of others do.
   */
  async #repeatEnd(session_id: string): Promise<void> {
    if (this.#ended_again_ms.has(session_id)) return;
    this.#ended_again_ms.set(session_id, this.#options.now_ms());
    this.#reporter ??= await SessionIdentity.create();
    const tombstone = { session_id, evidence: 'it was over, and had been compacted' };
    await this.#folder.write(session_id, 'left', sealTombstone(tombstone, this.#reporter, this.network_key));
  }

  /** Forgets what is over, and removes its files; any member may, for a LEFT record changes no more. */
  async #tidy(present: ReadonlyMap<string, unknown>, temporary: string[]): Promise<void> {
    const now_ms = this.#options.now_ms();
    for (const entry of [...this.table.entries()]) {
      const { session_id } = entry;
      const notice = this.#notices.get(session_id) ?? {};
      this.#notices.set(session_id, notice);
      if (hasLeft(entry)) {
        notice.left_since_ms ??= now_ms;
        if (now_ms - notice.left_since_ms < this.#options.compact_after_ms) continue;
        await this.#folder.remove(`${session_id}.rec`);
        await this.#folder.remove(`${session_id}.left`);
        this.#forget(session_id, true);
      } else if (
        present.has(`${session_id}.rec`) ||
        this.#own.has(session_id) ||
        // Of another site: its watchers say when it leaves.
        (this.#peer && isGossiped(entry) && this.table.sourcesOf(session_id).includes('gossip'))
      ) {
        delete notice.left_since_ms; // it may have been taken for gone, and lived
        delete notice.missing_since_ms;
      } else {
        delete notice.left_since_ms;
        notice.missing_since_ms ??= now_ms;
        if (now_ms - notice.missing_since_ms >= this.#options.forget_after_ms) {
          this.#forget(session_id, false);
        }
      }
    }
    for (const [session_id, since_ms] of this.#ended_again_ms) {
      if (now_ms - since_ms < this.#options.compact_after_ms) continue;
      await this.#folder.remove(`${session_id}.rec`);
      await this.#folder.remove(`${session_id}.left`);
      this.#ended_again_ms.delete(session_id);
    }
    for (const name of this.#temporary_since_ms.keys()) {
      if (!temporary.includes(name)) this.#temporary_since_ms.delete(name);
    }
    for (const name of temporary) {
      const since_ms = this.#temporary_since_ms.get(name) ?? now_ms;
      this.#temporary_since_ms.set(name, since_ms);
      if (now_ms - since_ms >= this.#options.compact_after_ms) await this.#folder.remove(name);
    }
  }

  #forget(sessionId: string, forGood: boolean): void {
    this.table.forget(sessionId, forGood);
    this.#notices.delete(sessionId);
    this.#own.delete(sessionId);
  }

  #watch(): void {
    if (this.#watcher || this.#closed) return;
    try {
      this.#watcher = watch(this.#folder.sessions_folder, { persistent: false }, () => {
        clearTimeout(this.#hint);
        this.#hint = setTimeout(() => this.#lookUnasked(), hint_pause_ms);
        this.#hint.unref();
      });
    } catch (error) {
      // No inotify here (limit reached, filesystem without it): polling alone does the work.
      if (!isFilesystemError(error)) throw error;
      return;
    }
    this.#watcher.on('error', () => this.#dropWatcher());
    this.#watcher.on('close', () => this.#dropWatcher());
  }

  #dropWatcher(): void {
    const watcher = this.#watcher;
    this.#watcher = undefined;
    watcher?.close();
  }

  #reject(file: string, { reason, message }: RecordRejected): void {
    const rejected = { ...this.#status.rejected, [reason]: (this.#status.rejected[reason] ?? 0) + 1 };
    const recent = [...this.#status.recent_rejections, { file, reason, message }].slice(-rejections_kept);
    this.#setStatus({ ...this.#status, rejected, recent_rejections: recent });
  }

  #report(state: RegistryStatus['state'], reason?: string): void {
    if (state !== 'ok') {
      this.#thorough_began_ms = Number.NEGATIVE_INFINITY; // look at everything when it is back
      if (this.#status.state === 'ok') this.#folder.forget();
      this.#dropWatcher();
    }
    if (this.#status.state === state && this.#status.reason === reason) return;
    const { rejected, recent_rejections } = this.#status;
    this.#setStatus({ state, reason, rejected, recent_rejections });
  }

  #setStatus(status: RegistryStatus): void {
    this.#status = status;
    for (const callback of this.#statusCallbacks) callback(status);
  }
}

function requireSame(sessionId: string, nameOfFile: string): void {
  if (sessionId !== nameOfFile) throw new RecordRejected('wrong_name', `it holds session ${sessionId}`);
}

function isFilesystemError(error: unknown): boolean {
  if (error instanceof HpcserveError) return error.code === 'E_MESH_KEY' || error.code === 'E_MESH_FOLDER';
  return error instanceof Error && 'syscall' in error;
}

function messageOf(error: unknown): string {
  if (error instanceof HpcserveError) return [error.message, ...error.because].join(': ');
  return systemMessage(error);
}
