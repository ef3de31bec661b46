import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';
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
      try {
        const text = `${JSON.stringify(this.#state(), null, 2)}\n`;
        // Up to four times a second while weights load: the next one is soon there where a crash takes this one away.
        await writeFileAtomicallyAsync(this.#path, text, { durability: 'content' });
        this.#onError(undefined);
      } catch (error) {
        this.#onError(error as NodeJS.ErrnoException);
        if (!this.#closed && !this.#timer) this.#schedule(retry_ms);
      }
    });
    return this.#writing;
  }
}
