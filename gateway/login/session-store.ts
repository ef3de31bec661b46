import { hash, randomBytes } from 'node:crypto';
import { readdirSync, readFileSync, rmSync, statSync, utimesSync } from 'node:fs';
import { readFile, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { makePrivateFolder } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { loginRoles } from '../../spec/login-settings.ts';

const sessionSchema = z.object({
  format: z.literal(1),
  user: z.string(),
  role: z.enum(loginRoles),
  /** Of the key as which it acts. */
  key_id: z.string(),
  /** Of the secret that the page keeps where no other origin can read it. */
  page_hash: z.string(),
  /** Of the gateway, as the browser sees it. */
  root: z.string(),
  issuer: z.string(),
  subject: z.string(),
  created_at_ms: z.number(),
  ends_at_ms: z.number(),
});
export type LoginSession = z.infer<typeof sessionSchema>;

/** Between two looks at a session's file: how long another gateway's sign-out may take to be seen. */
const look_ms = 2000;
/** That a session is used is written down as often. Lower: more to write; higher: idle sessions live longer. */
const note_ms = 60_000;
/** Files of sessions that are not known here, looked for in a second: strangers must not keep a filesystem busy. */
const unknown_per_s = 10;
/** Sessions of one user; beyond it the oldest end. */
const sessions_max = 16;
const id_bytes = 32;
const fileName = /^session-([0-9a-f]{64})\.json$/;

interface Known {
  session: LoginSession;
  used_at_ms: number;
  /** By the steady clock. */
  looked_at_ms: number;
}

export function hashSecret(secret: string): string {
  return hash('sha256', secret, 'hex');
}

/**
 * Sessions of the dashboard: a folder with a file each, which all gateways of a site share, named by the hash of the
 * id that the cookie holds. The time of a file's last change is when its session was used last.
 */
export class SessionStore {
  readonly #folder: string;
  readonly #idle_ms: number;
  readonly #known = new Map<string, Known>();
  #unknown = { second: 0, looks: 0 };

  private constructor(folder: string, idle_ms: number) {
    this.#folder = folder;
    this.#idle_ms = idle_ms;
  }

  /** Reads what there is, and takes away what is over. @throws E_GATEWAY_FOLDER */
  static open(folder: string, idle_ms: number): SessionStore {
    const store = new SessionStore(folder, idle_ms);
    store.#guarded(() => {
      makePrivateFolder(folder);
      store.#sweep();
    });
    return store;
  }

  /** @returns the id, which is nowhere kept. @throws E_GATEWAY_FOLDER */
  create(session: Omit<LoginSession, 'format'>): string {
    const id = randomBytes(id_bytes).toString('base64url');
    const name = hashSecret(id);
    const kept: LoginSession = { format: 1, ...session };
    this.#guarded(() => {
      this.#forgetPast();
      this.#endOldestOf(session.user);
      writeFileAtomically(this.#path(name), `${JSON.stringify(kept)}\n`);
      this.#note(name);
    });
    this.#known.set(name, { session: kept, used_at_ms: Date.now(), looked_at_ms: performance.now() });
    return id;
  }

  /** A session that is neither over nor idle, as far as is known without a look at its file. */
  known(id: string): LoginSession | undefined {
    const known = this.#known.get(hashSecret(id));
    return known && this.#isOpen(known) ? known.session : undefined;
  }

  /** A session that is neither over nor idle, which this is a use of. @throws E_GATEWAY_FOLDER */
  async use(id: string): Promise<LoginSession | undefined> {
    const name = hashSecret(id);
    const before = this.#known.get(name);
    const isFresh = before && performance.now() - before.looked_at_ms < look_ms;
    if (!isFresh || !this.#isOpen(before)) await this.#look(name);
    const known = this.#known.get(name);
    if (!known) return undefined;
    if (!this.#isOpen(known)) {
      this.#remove(name);
      return undefined;
    }
    const now_ms = Date.now();
    if (now_ms - known.used_at_ms > Math.min(note_ms, this.#idle_ms / 4)) {
      known.used_at_ms = now_ms;
      const now = new Date(now_ms);
      // Where it cannot be noted the session ends sooner, and no later.
      await utimes(this.#path(name), now, now).catch(() => undefined);
    }
    return known.session;
  }

  /** @throws E_GATEWAY_FOLDER */
  end(id: string): void {
    this.#remove(hashSecret(id));
  }

  async #look(name: string): Promise<void> {
    if (!this.#known.has(name) && !this.#mayLook()) return;
    try {
      const { mtimeMs } = await stat(this.#path(name));
      const session = parse(await readFile(this.#path(name), 'utf8'));
      if (session) this.#known.set(name, { session, used_at_ms: mtimeMs, looked_at_ms: performance.now() });
      else await rm(this.#path(name), { force: true });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw this.#unusable(error);
      this.#known.delete(name);
    }
  }

  #mayLook(): boolean {
    const second = Math.floor(performance.now() / 1000);
    if (this.#unknown.second !== second) this.#unknown = { second, looks: 0 };
    return this.#unknown.looks++ < unknown_per_s;
  }

  #isOpen({ session: { ends_at_ms }, used_at_ms }: Known): boolean {
    const now_ms = Date.now();
    return now_ms < ends_at_ms && now_ms - used_at_ms < this.#idle_ms;
  }

  #sweep(): void {
    for (const file of readdirSync(this.#folder)) {
      const name = fileName.exec(file)?.[1];
      if (name === undefined) continue;
      const path = this.#path(name);
      try {
        const session = parse(readFileSync(path, 'utf8'));
        const used_at_ms = statSync(path).mtimeMs;
        const known = session && { session, used_at_ms, looked_at_ms: performance.now() };
        if (known && this.#isOpen(known)) this.#known.set(name, known);
        else this.#remove(name);
      } catch (error) {
        // Another gateway was first.
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
        this.#known.delete(name);
      }
    }
  }

  /** Without a look at the folder. One that is idle here may be in use at another gateway: its file stays. */
  #forgetPast(): void {
    const now_ms = Date.now();
    for (const [name, known] of this.#known) {
      if (now_ms >= known.session.ends_at_ms) this.#remove(name);
      else if (!this.#isOpen(known)) this.#known.delete(name);
    }
  }

  #endOldestOf(user: string): void {
    const own = [...this.#known].filter(([, { session }]) => session.user === user);
    const oldest = own.sort(([, a], [, b]) => a.session.created_at_ms - b.session.created_at_ms);
    for (const [name] of oldest.slice(0, Math.max(0, own.length - sessions_max + 1))) this.#remove(name);
  }

  #remove(name: string): void {
    this.#known.delete(name);
    this.#guarded(() => rmSync(this.#path(name), { force: true }));
  }

  #note(name: string): void {
    const now = new Date();
    utimesSync(this.#path(name), now, now);
  }

  #path(name: string): string {
    return join(this.#folder, `session-${name}.json`);
  }

  #guarded(action: () => void): void {
    try {
      action();
    } catch (error) {
      throw this.#unusable(error);
    }
  }

  #unusable(error: unknown): HpcserveError {
    return new HpcserveError('E_GATEWAY_FOLDER', {
      what: `the folder of sessions ${this.#folder} cannot be used`,
      because: (error as Error).message,
      cause: error,
    });
  }
}

/** Undefined for another version's, or what is damaged. */
function parse(text: string): LoginSession | undefined {
  try {
    return sessionSchema.safeParse(JSON.parse(text)).data;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
