/** Host keys against known_hosts files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"). */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';

export type HostKeyVerdict =
  | { state: 'known' }
  /** No line speaks of this host. */
  | { state: 'unknown' }
  /** Lines speak of this host, and none has this key: another machine answers, or it got new keys. */
  | { state: 'changed'; lines: number[] }
  | { state: 'revoked'; line: number };

interface KnownHost {
  line: number;
  revoked: boolean;
  key: Buffer;
}

/**
 * @param key the host's public key as it travels: type and data (RFC 4253 §6.6)
 */
export function judgeHostKey(knownHosts: string, host: string, port: number, key: Buffer): HostKeyVerdict {
  const lines = linesOf(knownHosts, host, port);
  const same = (each: KnownHost): boolean => each.key.length === key.length && timingSafeEqual(each.key, key);
  const revoked = lines.find((each) => each.revoked && same(each));
  if (revoked) return { state: 'revoked', line: revoked.line };
  const trusted = lines.filter((each) => !each.revoked);
  if (trusted.some(same)) return { state: 'known' };
  if (trusted.length === 0) return { state: 'unknown' };
  return { state: 'changed', lines: trusted.map(({ line }) => line) };
}

/** Types of the keys that are known of a host, to be asked for first: a host has several. */
export function knownKeyTypes(knownHosts: string, host: string, port: number): string[] {
  return [...new Set(linesOf(knownHosts, host, port).map(({ key }) => hostKeyType(key)))];
}

/** As `ssh-keygen -l` prints it. */
export function hostKeyFingerprint(key: Buffer): string {
  return `SHA256:${createHash('sha256').update(key).digest('base64').replace(/=+$/, '')}`;
}

export function hostKeyType(key: Buffer): string {
  return key.length < 4 ? '' : key.subarray(4, 4 + key.readUInt32BE(0)).toString('latin1');
}

function linesOf(text: string, host: string, port: number): KnownHost[] {
  const names = port === 22 ? [host.toLowerCase()] : [`[${host.toLowerCase()}]:${port}`];
  return text.split('\n').flatMap((raw, index) => {
    const fields = raw.trim().split(/\s+/);
    if (fields[0] === '' || fields[0]!.startsWith('#')) return [];
    const marker = fields[0]!.startsWith('@') ? fields.shift() : undefined;
    // Keys that authorities signed are not judged: such a host counts as unknown.
    if (marker !== undefined && marker !== '@revoked') return [];
    const [patterns, , data] = fields;
    if (patterns === undefined || data === undefined) return [];
    if (!names.some((name) => matches(patterns, name))) return [];
    return [{ line: index + 1, revoked: marker === '@revoked', key: Buffer.from(data, 'base64') }];
  });
}

function matches(patterns: string, name: string): boolean {
  if (patterns.startsWith('|1|')) {
    const [, , salt = '', hash = ''] = patterns.split('|');
    const own = createHmac('sha1', Buffer.from(salt, 'base64')).update(name).digest();
    const theirs = Buffer.from(hash, 'base64');
    return own.length === theirs.length && timingSafeEqual(own, theirs);
  }
  let found = false;
  for (const pattern of patterns.toLowerCase().split(',')) {
    const negated = pattern.startsWith('!');
    const glob = negated ? pattern.slice(1) : pattern;
    const expression = glob
      .replaceAll(/[.+^${}()|[\]\\]/g, '\\$&')
      .replaceAll('*', '.*')
      .replaceAll('?', '.');
    if (!new RegExp(`^${expression}$`).test(name)) continue;
    if (negated) return false;
    found = true;
  }
  return found;
}
