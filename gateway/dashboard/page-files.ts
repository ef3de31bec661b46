import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { extname, join, relative, sep } from 'node:path';
import { gzipSync } from 'node:zlib';

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

/** One file of the page, as it is sent. */
export interface PageFile {
  type: string;
  body: Buffer;
  gzip: Buffer;
  etag: string;
  /** Its name has a hash of what is in it, so that it never changes. */
  immutable: boolean;
}

/**
 * The dashboard as the build left it, by path below its folder: some files of a hundred kilobytes together, read once.
 * Empty where it was not built.
 */
export function readPageFiles(folder: string): ReadonlyMap<string, PageFile> {
  const files = new Map<string, PageFile>();
  if (!existsSync(folder)) return files;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const type = types[extname(entry.name)];
    if (!entry.isFile() || type === undefined) continue;
    const path = join(entry.parentPath, entry.name);
    const body = readFileSync(path);
    const name = relative(folder, path).split(sep).join('/');
    files.set(name, {
      type,
      body,
      gzip: gzipSync(body, { level: 9 }),
      etag: `"${createHash('sha256').update(body).digest('hex').slice(0, 32)}"`,
      immutable: name.startsWith('assets/'),
    });
  }
  return files;
}
