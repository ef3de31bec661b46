import { appendFile } from 'node:fs/promises';
import pino from 'pino';
import { syncPath } from '../../host/whole-file.ts';

export type AgentLog = pino.Logger;

/** Lines kept while the file cannot be written. */
const backlog_lines = 1000;

/**
 * The agent's log: JSON lines in its file; warnings and worse on stderr too, where the job's log has them. A full
 * disk or a folder that is away costs lines, never the agent: they are kept for a while and written when it works.
 */
export class LogFile {
  readonly #path: string;
  readonly #onError: (error: NodeJS.ErrnoException | undefined) => void;
  #backlog: string[] = [];
  #lost = 0;
  #writing: Promise<void> | undefined;
  #retry: NodeJS.Timeout | undefined;

  /** @param onError called with the error when writing begins to fail, and with undefined when it works again */
  constructor(path: string, onError: (error: NodeJS.ErrnoException | undefined) => void) {
    this.#path = path;
    this.#onError = onError;
  }

  write(line: string): void {
    this.#backlog.push(line);
    if (this.#backlog.length > backlog_lines) {
      this.#backlog.shift();
      this.#lost++;
    }
    if (!this.#retry) this.#writing ??= this.#flush();
  }

  async close(): Promise<void> {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    await (this.#writing ?? this.#flush());
    clearTimeout(this.#retry);
    // The node may be gone a moment later, and with it what its page cache holds.
    await syncPath(this.#path).catch(() => undefined); // that it cannot be written is reported already
  }

  async #flush(): Promise<void> {
    let failed = false;
    while (this.#backlog.length > 0 && !failed) {
      const lines = this.#backlog;
      this.#backlog = [];
      try {
        const notice =
          this.#lost > 0 ? `${JSON.stringify({ level: 40, msg: `${this.#lost} lines were lost` })}\n` : '';
        await appendFile(this.#path, notice + lines.join(''), { mode: 0o600 });
        this.#lost = 0;
        this.#onError(undefined);
      } catch (error) {
        failed = true;
        this.#backlog = [...lines, ...this.#backlog].slice(-backlog_lines);
        this.#onError(error as NodeJS.ErrnoException);
        this.#retry = setTimeout(() => {
          this.#retry = undefined;
          this.#writing = this.#flush();
        }, 5000);
        this.#retry.unref();
      }
    }
    this.#writing = undefined;
  }
}

export function agentLog(file: LogFile, base: Record<string, unknown>): AgentLog {
  return pino(
    { level: process.env.HPCSERVE_DEBUG ? 'debug' : 'info', base },
    pino.multistream([
      { level: 'debug', stream: file },
      { level: 'warn', stream: { write: (line: string) => void process.stderr.write(line) } },
    ]),
  );
}
