/** What the login node says about its filesystems: where state can lie so that compute nodes see it. */
import { accessSync, constants, readFileSync, realpathSync } from 'node:fs';

export interface Mount {
  mount_point: string;
  type: string;
}

/** What `discoverSite` asks the machine it runs on. */
export interface HostFacts {
  environment: Readonly<Record<string, string | undefined>>;
  mounts: readonly Mount[];
  /** The real path when the folder exists and can be written, else undefined. */
  writableFolder(path: string): string | undefined;
}

/** Filesystems that many machines mount at once. */
const sharedTypes =
  /^(nfs4?|lustre|gpfs|beegfs|ceph|fuse\.(ceph|sshfs|glusterfs|juicefs|moosefs)|panfs|wekafs|glusterfs|orangefs|pvfs2|afs|cifs|smb3|virtiofs|9p|dvs|vast|acfs)$/;

export function readHostFacts(): HostFacts {
  return {
    environment: process.env,
    mounts: parseMountInfo(readFileSync('/proc/self/mountinfo', 'utf8')),
    writableFolder(path) {
      try {
        accessSync(path, constants.W_OK | constants.X_OK);
        return realpathSync(path);
      } catch {
        // Not there or not ours: no candidate.
        return undefined;
      }
    },
  };
}

/** Mount points and filesystem types of /proc/self/mountinfo (proc(5)); spaces are written `\040`. */
export function parseMountInfo(text: string): Mount[] {
  return text.split('\n').flatMap((line) => {
    const [left, right] = line.split(' - ', 2);
    const mount_point = left?.split(' ')[4];
    const type = right?.split(' ')[0];
    if (mount_point === undefined || type === undefined) return [];
    return [
      {
        mount_point: mount_point.replace(/\\(\d{3})/g, (_, octal: string) =>
          String.fromCharCode(Number.parseInt(octal, 8)),
        ),
        type,
      },
    ];
  });
}

/** The filesystem type under a real path: that of the longest mount point above it. */
export function filesystemOf(path: string, mounts: readonly Mount[]): string | undefined {
  const above = mounts.filter(
    ({ mount_point }) => mount_point === '/' || path === mount_point || path.startsWith(`${mount_point}/`),
  );
  return above.reduce<Mount | undefined>(
    // Of two mounts on one point the later one is on top.
    (longest, mount) =>
      longest === undefined || mount.mount_point.length >= longest.mount_point.length ? mount : longest,
    undefined,
  )?.type;
}

export function isSharedFilesystem(type: string | undefined): boolean {
  return type !== undefined && sharedTypes.test(type);
}
