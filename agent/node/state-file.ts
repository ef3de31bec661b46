import { open, rename, unlink } from 'node:fs/promises';
import type { AgentState } from '../../spec/agent-state.ts';

/** Least time between two writes, ms. Lower: progress is seen sooner; higher: less load on the shared filesystem. */
const pause_ms = 250;
/** Pause after a failed write. */
const retry_ms = 2000;

/**
 * The agent's state on the shared filesystem: the whole file is replaced, so that readers never see half of it.
 * Changes that come close together are one write; a write that fails is repeated with what is true then.
 */
export class StateFile {
  readonly #path: string;
  readonly #state: () => AgentState;
  readonly #onError: (error: NodeJS.ErrnoException | undefined) => void;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #last_ms = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(
    path: string,
    state: () => AgentState,
    onError: (error: NodeJS.ErrnoException | undefined) => void,
  ) {
    this.#path = path;
    this.#state = state;
    this.#onError = onError;
  }

  changed(): void {
    if (this.#timer || this.#closed) return;
    this.#schedule(Math.max(0, this.#last_ms + pause_ms - performance.now()));
  }

  /** Writes what is true now and no more after it; gives up after `deadline_ms` on a filesystem that hangs. */
  async close(deadline_ms: number): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    let timer: NodeJS.Timeout | undefined;
    const deadline = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, deadline_ms);
    });
    await Promise.race([this.#write(), deadline]);
    clearTimeout(timer);
  }

  #schedule(delay_ms: number): void {
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#write();
    }, delay_ms);
  }

  #write(): Promise<void> {
    this.#writing = this.#writing.then(async () => {
      this.#last_ms = performance.now();
      const temporary = `${this.#path}.tmp-${process.pid}`;
      try {
        const file = await open(temporary, 'w', 0o600);
        try {
          await file.writeFile(`${JSON.stringify(this.#state(), null, 2)}\n`);
          await file.sync();
        } finally {
          await file.close();
        }
        await rename(temporary, this.#path);
        this.#onError(undefined);
      } catch (error) {
        await unlink(temporary).catch(() => undefined); // the first error is the one to report
        this.#onError(error as NodeJS.ErrnoException);
        if (!this.#closed && !this.#timer) this.#schedule(retry_ms);
      }
    });
    return this.#writing;
  }
}
