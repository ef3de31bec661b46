/**
 * The one error type people see. Every instance names a code of the registry, says what happened,
 * because of what, and what to do; commands print it as `error: … / because: … / try: …`, the gateway
 * puts it into the OpenAI error envelope.
 */
import { type ErrorCode, errorRegistry } from './registry.ts';

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

export class HpcserveError extends Error {
  override readonly name = 'HpcserveError';
  readonly code: ErrorCode;
  readonly because: readonly string[];
  readonly try: readonly string[];
  readonly details: Record<string, unknown>;

  constructor(code: ErrorCode, facts: ErrorFacts) {
    super(facts.what, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.code = code;
    this.because = list(facts.because);
    const advice = list(facts.try);
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

  /** Any thrown value as an HpcserveError; what is not one becomes E_INTERNAL with its stack as cause. */
  static from(thrown: unknown): HpcserveError {
    if (thrown instanceof HpcserveError) return thrown;
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

function list(value: string | readonly string[] | undefined): readonly string[] {
  if (value === undefined) return [];
  return typeof value === 'string' ? [value] : value;
}
