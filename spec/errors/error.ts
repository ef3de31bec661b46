import { type ErrorCode, errorRegistry } from './registry.ts';
import { isOutOfRoom, namedIn, quotaAdvice, systemCode } from './system-error.ts';

export interface ErrorFacts {
  /** What happened, one sentence, with the names and numbers of this case. */
  what: string;
  /** Because of what: observations, most important first (file:line:column, Slurm's own words, …). */
  because?: string | readonly string[];
  /** What to do; the registry's `fix` is used where this is absent. */
  try?: string | readonly string[];
  /** Machine-readable facts for `--json`; never secrets. */
  details?: Record<string, unknown>;
  /** The error underneath, kept for logs. */
  cause?: unknown;
}

/**
 * The one error type people see. Every instance names a code of the registry, says what happened,
 * because of what, and what to do; commands print it as `error: … / because: … / try: …`, the gateway
 * puts it into the OpenAI error envelope.
 */
export class HpcserveError extends Error {
  override readonly name = 'HpcserveError';
  readonly code: ErrorCode;
  readonly because: readonly string[];
  readonly try: readonly string[];
  readonly details: Record<string, unknown>;

  constructor(code: ErrorCode, facts: ErrorFacts) {
    super(namedIn(facts.what, facts.cause), facts.cause === undefined ? undefined : { cause: facts.cause });
    this.code = code;
    this.because = list(facts.because).map((line) => namedIn(line, facts.cause));
    const advice = [...quotaAdvice(facts.cause), ...list(facts.try)];
    this.try = advice.length > 0 ? advice : [errorRegistry[code].fix];
    this.details = facts.details ?? {};
  }

  /** HTTP status with which the gateway and the agent answer. */
  get http_status(): number {
    return errorRegistry[this.code].http_status;
  }

  /** Exit code of a command that ends with this error. */
  get exit_code(): number {
    return errorRegistry[this.code].exit_code;
  }

  /** The form in which errors travel in JSON outputs and state files. */
  toJSON(): ErrorJson {
    return {
      code: this.code,
      what: this.message,
      because: [...this.because],
      try: [...this.try],
      details: this.details,
    };
  }

  /** The text a person reads, without colour. */
  toText(): string {
    return [
      `error: ${this.message} [${this.code}]`,
      ...this.because.map((line) => `  because: ${line}`),
      ...this.try.map((line) => `  try: ${line}`),
    ].join('\n');
  }

  /** Rebuilds an error that travelled as JSON (state files, agent answers). */
  static fromJSON(json: ErrorJson): HpcserveError {
    const code = json.code in errorRegistry ? (json.code as ErrorCode) : 'E_INTERNAL';
    return new HpcserveError(code, {
      what: json.what,
      because: json.because,
      try: json.try,
      details: json.details,
    });
  }

  /**
   * Any thrown value as an HpcserveError: what the filesystem refuses is E_FILESYSTEM, anything else that is
   * not one already becomes E_INTERNAL with its stack as cause.
   */
  static from(thrown: unknown): HpcserveError {
    if (thrown instanceof HpcserveError) return thrown;
    const refused = refusedBySystem(thrown);
    if (refused) return refused;
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    return new HpcserveError('E_INTERNAL', { what: message, cause: thrown });
  }
}

export interface ErrorJson {
  code: string;
  what: string;
  because: string[];
  try: string[];
  details: Record<string, unknown>;
}

/** Reasons of the system that are no defect of ours, in words. */
const systemReasons: Readonly<Record<string, string>> = {
  ENOSPC: 'no space is left on that filesystem',
  EDQUOT: 'your quota on that filesystem is used up',
  EROFS: 'that filesystem is read-only',
  EACCES: 'you may not access it',
  EPERM: 'the system does not allow it',
  EIO: 'the device reports an error',
  ESTALE: 'the file server no longer knows it; the mount is stale',
};

function refusedBySystem(thrown: unknown): HpcserveError | undefined {
  if (!(thrown instanceof Error)) return undefined;
  const { path, dest, message } = thrown as NodeJS.ErrnoException & { dest?: string };
  const code = systemCode(thrown) ?? '';
  const reason = systemReasons[code];
  // Without a path it is no file: a socket, a process.
  const file = dest ?? path;
  if (reason === undefined || (file === undefined && !isOutOfRoom(thrown))) return undefined;
  return new HpcserveError('E_FILESYSTEM', {
    what: file === undefined ? `a file cannot be written: ${reason}` : `${file}: ${reason}`,
    because: message,
    details: { code, path: file },
    cause: thrown,
  });
}

function list(value: string | readonly string[] | undefined): readonly string[] {
  if (value === undefined) return [];
  return typeof value === 'string' ? [value] : value;
}
