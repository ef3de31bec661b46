import { hash, randomBytes } from 'node:crypto';
import type { KeySettings } from '../spec/key-settings.ts';

/** Every API key starts so: people and secret scanners recognize it. */
const keyPrefix = 'hsk-';

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const secret_bytes = 32;
/** ceil(256 / log2(62)) digits hold any 32 bytes. */
const secretDigits = 43;

/** What is kept of an API key; the key itself is shown once and never stored. */
export interface ApiKey {
  /** Public handle, `key_` and 12 base62 digits. */
  id: string;
  name: string;
  created_at_ms: number;
  revoked_at_ms?: number | undefined;
  /** It is not valid until it is unblocked. */
  blocked_at_ms?: number | undefined;
  /** The key it was derived from, whose limits count for both, and without which it is not valid. */
  parent_id?: string | undefined;
  settings: KeySettings;
}

/** `hsk-` and 32 random bytes in base62. */
export function generateKey(): string {
  return keyPrefix + base62(randomBytes(secret_bytes), secretDigits);
}

export function generateKeyId(): string {
  // 8 bytes fit into 11 digits; the leading zero keeps the width even if a longer id is ever wanted.
  return `key_${base62(randomBytes(8), 12)}`;
}

/**
 * SHA-256 of a key, hex. A plain hash is enough (and fast enough for every request) because the key has
 * 256 bits of entropy; passwords would need a slow one. Looking keys up by this hash leaks nothing by timing:
 * how long a comparison takes depends on hashes, which nobody can steer towards a wanted value.
 */
export function hashKey(key: string): string {
  return hash('sha256', key, 'hex');
}

function base62(bytes: Uint8Array, digits: number): string {
  let value = 0n;
  for (const byte of bytes) value = (value << 8n) | BigInt(byte);
  let text = '';
  for (let digit = 0; digit < digits; digit++) {
    text = alphabet[Number(value % 62n)]! + text;
    value /= 62n;
  }
  return text;
}

/** The key whose limits a key's requests count against. */
export function limitsKeyOf({ id, parent_id }: Pick<ApiKey, 'id' | 'parent_id'>): string {
  return parent_id ?? id;
}
