/** What is mounted where on this host, and which filesystems many hosts mount at once. */
import { readFileSync } from 'node:fs';

export interface Mount {
  mount_point: string;
  type: string;
  /** What of the filesystem is seen there: `/`, or a folder of it. */
  root: string;
  /** Of the filesystem, not of this mount of it. */
  options: readonly string[];
}

/** Filesystems that many machines mount at once. */
const sharedTypes =
  /^(nfs4?|lustre|gpfs|beegfs(_nodev)?|ceph|gfs2|ocfs2|fuse\.(ceph|sshfs|glusterfs|juicefs|moosefs|dfuse)|panfs|wekafs|glusterfs|orangefs|pvfs2|afs|cifs|smb3|virtiofs|9p|dvs|vast|acfs)$/;

export function readMounts(): Mount[] {
  return parseMountInfo(readFileSync('/proc/self/mountinfo', 'utf8'));
}

/** The lines of /proc/self/mountinfo (proc(5)); spaces are written `\040`. */
export function parseMountInfo(text: string): Mount[] {
  const plain = (path: string): string =>
    path.replace(/\\(\d{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
  return text.split('\n').flatMap((line) => {
    const [left, right] = line.split(' - ', 2);
    const [, , , root, mount_point] = left?.split(' ') ?? [];
    const [type, , options = ''] = right?.split(' ') ?? [];
    if (root === undefined || mount_point === undefined || type === undefined) return [];
    return [{ mount_point: plain(mount_point), type, root: plain(root), options: options.split(',') }];
  });
}

/** The filesystem type under a real path: that of the longest mount point above it. */
export function mountTypeOf(
  path: string,
  mounts: readonly Pick<Mount, 'mount_point' | 'type'>[],
): string | undefined {
  const above = mounts.filter(
    ({ mount_point }) => mount_point === '/' || path === mount_point || path.startsWith(`${mount_point}/`),
  );
  return above.reduce<Pick<Mount, 'mount_point' | 'type'> | undefined>(
    // Of two mounts on one point the later one is on top.
    (longest, mount) =>
      longest === undefined || mount.mount_point.length >= longest.mount_point.length ? mount : longest,
    undefined,
  )?.type;
}

export function isSharedFilesystem(type: string | undefined): boolean {
  return type !== undefined && sharedTypes.test(type);
}
