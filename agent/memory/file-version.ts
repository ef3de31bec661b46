/** A model file as it was when its tensors were described; what must not have changed when they are loaded. */
import { type BigIntStats, statSync } from 'node:fs';
import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface FileVersion {
  path: string;
  device: bigint;
  inode: bigint;
  size_bytes: bigint;
  mtime_ns: bigint;
  ctime_ns: bigint;
}

export function fileVersion(path: string, stats: BigIntStats): FileVersion {
  const { dev, ino, size, mtimeNs, ctimeNs } = stats;
  return { path, device: dev, inode: ino, size_bytes: size, mtime_ns: mtimeNs, ctime_ns: ctimeNs };
}

/** @throws HpcserveError E_POOL_LOAD: the file is no longer the one whose header was read */
export function headerVersion(file: GgufFile): FileVersion {
  const stats = statSync(file.path, { bigint: true, throwIfNoEntry: false });
  const same =
    stats &&
    Number(stats.size) === file.file_bytes &&
    Math.trunc(Number(stats.mtimeNs) / 1e6) === Math.trunc(file.mtime_ms);
  if (stats && same) return fileVersion(file.path, stats);
  throw new HpcserveError('E_POOL_LOAD', {
    what: `${file.path} changed after its header was read`,
    because: stats ? 'its size or time of modification is another' : 'it is gone',
  });
}

/** Names of what differs between two versions of a file; none where they are the same. */
export function versionChanges(before: FileVersion, now: FileVersion): string[] {
  return (Object.keys(now) as (keyof FileVersion)[]).filter((key) => now[key] !== before[key]);
}

/** What is the same on every node that has the file from one filesystem: device numbers are each node's own. */
export function sharedVersionText({ inode, size_bytes, mtime_ns, ctime_ns }: FileVersion): string {
  return [inode, size_bytes, mtime_ns, ctime_ns].join(':');
}

/** Everything but the path, as text. */
export function versionText({ device, inode, size_bytes, mtime_ns, ctime_ns }: FileVersion): string {
  return [device, inode, size_bytes, mtime_ns, ctime_ns].join(':');
}
