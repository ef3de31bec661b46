import { randomBytes } from 'node:crypto';
import { chmodSync, linkSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { HpcserveError } from '../../spec/errors/error.ts';

const key_bytes = 32;

/**
 * The key by which a site's gateways seal what they keep of requests: made once, by whoever comes first, and readable
 * by its owner alone.
 *
 * @throws E_GATEWAY_FOLDER
 */
export function siteSecret(path: string): Buffer {
  try {
    return read(path) ?? make(path);
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw unusable(path, (error as Error).message);
  }
}

function read(path: string): Buffer | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600);
  const key = Buffer.from(text.trim(), 'base64url');
  if (key.length !== key_bytes) throw unusable(path, `it holds ${key.length} bytes, not ${key_bytes}`);
  return key;
}

/** By a link, which fails where another gateway was first: then its key is the site's. */
function make(path: string): Buffer {
  const own = `${path}.${process.pid}.${randomBytes(4).toString('hex')}`;
  try {
    writeFileSync(own, `${randomBytes(key_bytes).toString('base64url')}\n`, {
      flag: 'wx',
      mode: 0o600,
      flush: true,
    });
    linkSync(own, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(own, { force: true });
  }
  return read(path)!;
}

function unusable(path: string, because: string): HpcserveError {
  return new HpcserveError('E_GATEWAY_FOLDER', { what: `cannot use ${path}`, because });
}
