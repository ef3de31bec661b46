import { join } from 'node:path';
import { z } from 'zod';
import { FolderLock } from '../../host/folder-lock.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import { aroundChange } from '../state/locks.ts';

const minute_ms = 60_000;
const timesSchema = z.object({ format: z.literal(1), times_ms: z.array(z.number()) });

export interface SubmissionPaceOptions {
  /** Folder of the site's state. */
  folder: string;
  per_minute: number;
  now_ms: () => number;
  command: string;
  signal: AbortSignal;
}

/**
 * At most so many submissions in any minute, over all commands that share a state folder: their times stand
 * in a file there, under a lock that is held only while it is read and written.
 */
export class SubmissionPace {
  readonly #options: SubmissionPaceOptions;

  constructor(options: SubmissionPaceOptions) {
    this.#options = options;
  }

  /** How many submissions may be made now, without taking any. */
  room(): number {
    return Math.max(0, this.#options.per_minute - this.#recent().length);
  }

  /** Takes up to `count` submissions. @returns how many; the others have to wait. */
  async take(count: number): Promise<number> {
    const { folder, per_minute, now_ms, command, signal } = this.#options;
    makeFolders(folder);
    const request = aroundChange({ command, timeout_ms: 30_000, signal });
    const lock = await FolderLock.acquire(`${this.#path}.lock`, request);
    try {
      const recent = this.#recent();
      const taken = Math.min(count, Math.max(0, per_minute - recent.length));
      const times_ms = [...recent, ...Array.from({ length: taken }, now_ms)];
      if (taken > 0) writeFileAtomically(this.#path, `${JSON.stringify({ format: 1, times_ms })}\n`);
      return taken;
    } finally {
      lock.release();
    }
  }

  get #path(): string {
    return join(this.#options.folder, 'submissions.json');
  }

  /** Times within the last minute. A damaged file is worth nothing and counts as none. */
  #recent(): number[] {
    const now = this.#options.now_ms();
    const parsed = timesSchema.safeParse(this.#read());
    // A time to come is of a host whose clock is ahead: it must not block for longer than a minute.
    return parsed.success
      ? parsed.data.times_ms.filter((time) => time > now - minute_ms && time < now + minute_ms)
      : [];
  }

  #read(): unknown {
    try {
      return readJsonIfThere(this.#path);
    } catch (error) {
      if (error instanceof SyntaxError) return undefined;
      throw error;
    }
  }
}
