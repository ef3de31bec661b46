import { createHmac } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  hostKeyFingerprint,
  hostKeyType,
  judgeHostKey,
  knownKeyTypes,
} from '../../../slurm/ssh/known-hosts.ts';

/** A key as it travels: type and data. */
function key(type: string, byte: number): Buffer {
  const name = Buffer.from(type);
  const data = Buffer.alloc(32, byte);
  const length = (part: Buffer): Buffer => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(part.length);
    return bytes;
  };
  return Buffer.concat([length(name), name, length(data), data]);
}
const one = key('ssh-ed25519', 1);
const two = key('ssh-ed25519', 2);
const line = (hosts: string, blob: Buffer): string =>
  `${hosts} ${hostKeyType(blob)} ${blob.toString('base64')} someone\n`;
const hashed = (name: string): string => {
  const salt = Buffer.alloc(20, 7);
  return `|1|${salt.toString('base64')}|${createHmac('sha1', salt).update(name).digest('base64')}`;
};

describe('known_hosts', () => {
  it('knows a host by name, by pattern, by port and by hash', () => {
    for (const hosts of [
      'daint.cscs.ch',
      'other,daint.cscs.ch',
      '*.cscs.ch',
      'DAINT.cscs.ch',
      hashed('daint.cscs.ch'),
      'd?int.*',
    ])
      expect(judgeHostKey(line(hosts, one), 'daint.cscs.ch', 22, one), hosts).toEqual({ state: 'known' });
    expect(judgeHostKey(line('[login]:2222', one), 'login', 2222, one)).toEqual({ state: 'known' });
    expect(judgeHostKey(line(hashed('[login]:2222'), one), 'login', 2222, one)).toEqual({ state: 'known' });
  });

  it('does not take another host, port or a negated name for it', () => {
    for (const hosts of [
      'daint',
      'xdaint.cscs.ch',
      '*.cscs.ch,!daint.cscs.ch',
      '[daint.cscs.ch]:2222',
      hashed('eiger.cscs.ch'),
      'daint-cscs-ch',
    ])
      expect(judgeHostKey(line(hosts, one), 'daint.cscs.ch', 22, one), hosts).toEqual({ state: 'unknown' });
    expect(judgeHostKey(line('login', one), 'login', 2222, one)).toEqual({ state: 'unknown' });
  });

  it('sees a key that changed, and one that was revoked even where it is also trusted', () => {
    const text = `# comment\n\n${line('login', one)}`;
    expect(judgeHostKey(text, 'login', 22, two)).toEqual({ state: 'changed', lines: [3] });
    expect(judgeHostKey(`${line('login', one)}@revoked ${line('*', one)}`, 'login', 22, one)).toEqual({
      state: 'revoked',
      line: 2,
    });
  });

  it('trusts no authority it cannot judge, and no damaged line', () => {
    expect(judgeHostKey(`@cert-authority ${line('login', one)}`, 'login', 22, one)).toEqual({
      state: 'unknown',
    });
    expect(judgeHostKey('login\nlogin ssh-ed25519\n|1|x|y ssh-ed25519 AAAA\n', 'login', 22, one)).toEqual({
      state: 'unknown',
    });
  });

  it('tells which kinds of keys to ask for, and fingerprints as ssh-keygen does', () => {
    const text = line('login', one) + line('login', key('ssh-rsa', 3)) + line('login', two);
    expect(knownKeyTypes(text, 'login', 22)).toEqual(['ssh-ed25519', 'ssh-rsa']);
    expect(hostKeyFingerprint(one)).toMatch(/^SHA256:[A-Za-z0-9+/]{43}$/);
  });
});
