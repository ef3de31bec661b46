/** W3C Trace Context: which trace a request belongs to, and which of its spans caused it. */
import { randomBytes } from 'node:crypto';

export interface TraceContext {
  /** 32 hex digits. */
  trace_id: string;
  /** Of the span that caused what follows, 16 hex digits. */
  span_id: string;
  sampled: boolean;
}

/** Of any version: later ones may have more behind the flags (W3C Trace Context §3.2.2). */
const form = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?$/;

/** @returns undefined where a field is absent, or malformed: then who gets it begins a trace of its own */
export function parseTraceparent(value: unknown): TraceContext | undefined {
  const [, version, trace_id = '', span_id = '', flags = ''] = form.exec(String(value)) ?? [];
  if (version === undefined || version === 'ff') return undefined;
  if (version === '00' && String(value).length !== 55) return undefined;
  if (/^0+$/.test(trace_id) || /^0+$/.test(span_id)) return undefined;
  return { trace_id, span_id, sampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

export function formatTraceparent({ trace_id, span_id, sampled }: TraceContext): string {
  return `00-${trace_id}-${span_id}-${sampled ? '01' : '00'}`;
}

export function newSpanId(): string {
  return randomHex(8);
}

export function newTraceId(): string {
  return randomHex(16);
}

/** Asking the system for each id costs as much as all else of a span. */
const pool = { bytes: Buffer.alloc(0), at: 0 };

function randomHex(bytes: number): string {
  if (pool.at + bytes > pool.bytes.length) {
    pool.bytes = randomBytes(4096);
    pool.at = 0;
  }
  pool.at += bytes;
  return pool.bytes.toString('hex', pool.at - bytes, pool.at);
}

/**
 * Whether a trace is in the sample, by its random id, so that all who are asked with the same share say the same.
 * @param share 0 to 1
 */
export function isSampled(trace_id: string, share: number): boolean {
  return Number.parseInt(trace_id.slice(-13), 16) < share * 2 ** 52;
}
