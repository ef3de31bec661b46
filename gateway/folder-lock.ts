import { randomBytes } from 'node:crypto';
import { linkSync, readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs';
import { readFile, rename, unlink, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';
import { systemMessage } from '../spec/errors/system-error.ts';

const lockFile = 'gateway.lock';

const holderSchema = z.object({
  token: z.string(),
  hostname: z.string(),
  pid: z.int(),
  /** Start time of the process in clock ticks since boot: tells a process from a later one with its number. */
  process_start: z.string(),
  job_id: z.string().optional(),
  since_ms: z.number(),
  beat: z.int(),
});
type Holder = z.infer<typeof holderSchema>;

export interface FolderLockOptions {
  /** Pause between heartbeats. Lower: a dead holder is noticed sooner; higher: less load on the metadata server. */
  beat_ms?: number;
  /** A holder on another host whose heartbeat stands still this long is dead. Several `beat_ms`: NFS caches attributes. */
  stale_ms?: number;
  /** Another process took the lock over (it believed this one dead): this one must stop writing. */
  onLost?: (reason: string) => void;
}

/**
 * One gateway at a time per folder, on any filesystem: the lock is a file made by link(2), which is atomic on
 * NFS too, and its holder counts up a heartbeat in it. Clocks of hosts are never compared: who wants the lock
 * watches whether the count moves.
 */
export class FolderLock {
  readonly #path: string;
  readonly #options: FolderLockOptions;
  #holder: Holder;
  #timer: NodeJS.Timeout | undefined;
  #beating = false;
  #released = false;

  private constructor(path: string, holder: Holder, options: FolderLockOptions) {
    this.#path = path;
    this.#holder = holder;
    this.#options = options;
    this.#timer = setInterval(() => void this.#beat(), options.beat_ms ?? 2000).unref();
  }

  /** Takes the lock; throws E_GATEWAY_RUNNING with who holds it, E_GATEWAY_FOLDER. */
  static async take(folder: string, options: FolderLockOptions = {}): Promise<FolderLock> {
    const path = join(folder, lockFile);
    const mine: Holder = {
      token: randomBytes(12).toString('hex'),
      hostname: hostname(),
      pid: process.pid,
      process_start: processStart(process.pid) ?? '',
      since_ms: Date.now(),
      beat: 0,
    };
    if (process.env.SLURM_JOB_ID) mine.job_id = process.env.SLURM_JOB_ID;
    try {
      for (;;) {
        if (create(path, mine)) return new FolderLock(path, mine, options);
        const other = read(path);
        if (other === 'absent') continue;
        await requireDead(path, other, options.stale_ms ?? 15_000);
        // Whoever renames last has it, if two find it stale at once; both look again when the dust has settled.
        replace(path, mine);
        const sameHost = other !== 'damaged' && other.hostname === mine.hostname;
        await delay(sameHost ? 200 : 3000);
        const now = read(path);
        if (now !== 'absent' && now !== 'damaged' && now.token === mine.token) {
          return new FolderLock(path, mine, options);
        }
      }
    } catch (error) {
      if (error instanceof HpcserveError) throw error;
      throw new HpcserveError('E_GATEWAY_FOLDER', {
        what: `the lock ${path} cannot be taken`,
        because: (error as Error).message,
        cause: error,
      });
    }
  }

  release(): void {
    this.#released = true;
    clearInterval(this.#timer);
    const now = read(this.#path);
    if (now !== 'absent' && now !== 'damaged' && now.token === this.#holder.token) unlinkSync(this.#path);
  }

  /** Asynchronous: a shared filesystem may take its time, and answers must not wait for it. */
  async #beat(): Promise<void> {
    if (this.#beating) return;
    this.#beating = true;
    try {
      const now = await readFile(this.#path, 'utf8').then(parse, absentOr);
      if (this.#released) return;
      if (now !== 'damaged' && (now === 'absent' || now.token !== this.#holder.token)) {
        clearInterval(this.#timer);
        this.#options.onLost?.(
          now === 'absent'
            ? `${this.#path} was removed`
            : `pid ${now.pid} on ${now.hostname} took ${this.#path}`,
        );
        return;
      }
      this.#holder = { ...this.#holder, beat: this.#holder.beat + 1 };
      const temporary = `${this.#path}.${this.#holder.token}`;
      await writeFile(temporary, JSON.stringify(this.#holder), { mode: 0o600, flush: true });
      if (this.#released) await unlink(temporary);
      else await rename(temporary, this.#path);
    } catch (error) {
      // The filesystem may be away for a while; a holder that took over meanwhile is seen at the next beat.
      process.emitWarning(`the heartbeat of ${this.#path} could not be written: ${systemMessage(error)}`);
    } finally {
      this.#beating = false;
    }
  }
}

/** Returns when the holder is certainly gone; throws E_GATEWAY_RUNNING where it lives or may live. */
async function requireDead(path: string, holder: Holder | 'damaged', stale_ms: number): Promise<void> {
  if (holder !== 'damaged' && holder.hostname === hostname()) {
    const start = processStart(holder.pid);
    if (start !== undefined && start === holder.process_start) throw running(path, holder);
    return;
  }
  const deadline = performance.now() + stale_ms;
  while (performance.now() < deadline) {
    await delay(Math.min(250, stale_ms));
    const now = read(path);
    if (now === 'absent') return;
    if (now === 'damaged') continue;
    if (holder === 'damaged' || now.token !== holder.token || now.beat !== holder.beat)
      throw running(path, now);
  }
}

function running(path: string, holder: Holder): HpcserveError {
  const job = holder.job_id === undefined ? '' : ` (Slurm job ${holder.job_id})`;
  return new HpcserveError('E_GATEWAY_RUNNING', {
    what: 'another gateway runs on this folder',
    because: `process ${holder.pid} on ${holder.hostname}${job} has held ${path} since ${new Date(holder.since_ms).toISOString()}`,
    details: { pid: holder.pid, hostname: holder.hostname, job_id: holder.job_id },
  });
}

function create(path: string, holder: Holder): boolean {
  const temporary = `${path}.${holder.token}`;
  writeFileSync(temporary, JSON.stringify(holder), { mode: 0o600 });
  try {
    linkSync(temporary, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    unlinkSync(temporary);
  }
}

function replace(path: string, holder: Holder): void {
  const temporary = `${path}.${holder.token}`;
  writeFileSync(temporary, JSON.stringify(holder), { mode: 0o600 });
  renameSync(temporary, path);
}

function read(path: string): Holder | 'absent' | 'damaged' {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    return absentOr(error);
  }
  return parse(text);
}

function absentOr(error: unknown): 'absent' {
  if ((error as NodeJS.ErrnoException).code === 'ENOENT') return 'absent';
  throw error;
}

function parse(text: string): Holder | 'damaged' {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return 'damaged';
    throw error;
  }
  const result = holderSchema.safeParse(json);
  return result.success ? result.data : 'damaged';
}

/**
 * Field 22 of /proc/PID/stat; undefined where no such process runs. A zombie does not: whose parent was killed too waits for
 * process 1 to ask after it, which in a container may take long.
 */
function processStart(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? undefined : fields[19];
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH') return undefined;
    throw error;
  }
}
