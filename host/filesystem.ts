import { statfsSync } from 'node:fs';

/**
 * SQLite's write-ahead log needs shared memory between the processes of one host and file locks that hold;
 * network filesystems give neither reliably (sqlite.org/wal.html, "all processes using a database must be on
 * the same host"). FUSE counts as one: what is behind it is unknown (sshfs, s3fs, GlusterFS).
 */
const networkFilesystems: ReadonlyMap<number, string> = new Map([
  [0x6969, 'NFS'],
  [0x0bd00bd0, 'Lustre'],
  [0x47504653, 'GPFS'],
  [0x19830326, 'BeeGFS'],
  [0x65735546, 'FUSE'],
  [0x00c36400, 'CephFS'],
  [0xff534d42, 'CIFS'],
  [0xfe534d42, 'SMB2'],
  [0x517b, 'SMB'],
  [0x5346414f, 'AFS'],
  [0x7461636f, 'OCFS2'],
  [0x01161970, 'GFS2'],
  [0x01021997, '9P'],
  [0xaad7aaea, 'PanFS'],
  [0x20030528, 'OrangeFS'],
]);

/**
 * Copy-on-write filesystems need new room to change a page that is there already. Where there is none, the write-ahead
 * log's shared memory, a mapped file, ends the process by SIGBUS: a full quota would kill the gateway.
 */
const copyOnWriteFilesystems: ReadonlyMap<number, string> = new Map([
  [0x9123683e, 'btrfs'],
  [0xca451a4e, 'bcachefs'],
]);

export interface Filesystem {
  /** Name of a network or copy-on-write filesystem, else `local`. */
  name: string;
  network: boolean;
  /** Whether SQLite may map a file there to share memory: its write-ahead log needs that. */
  shared_memory: boolean;
}

/** What `magic`, the `f_type` of statfs(2), stands for. */
export function filesystemOfMagic(magic: number): Filesystem {
  // f_type is a signed 32-bit field on some ports: CIFS and SMB2 would appear negative.
  const remote = networkFilesystems.get(magic >>> 0);
  if (remote !== undefined) return { name: remote, network: true, shared_memory: false };
  const copying = copyOnWriteFilesystems.get(magic >>> 0);
  if (copying !== undefined) return { name: copying, network: false, shared_memory: false };
  return { name: 'local', network: false, shared_memory: true };
}

/** The filesystem that holds `path`, which exists. */
export function filesystemOf(path: string): Filesystem {
  return filesystemOfMagic(statfsSync(path).type);
}
