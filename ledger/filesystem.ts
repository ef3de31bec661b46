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

export interface Filesystem {
  /** Name of a network filesystem, or `local`. */
  name: string;
  network: boolean;
}

/** What `magic`, the `f_type` of statfs(2), stands for. */
export function filesystemOfMagic(magic: number): Filesystem {
  // f_type is a signed 32-bit field on some ports: CIFS and SMB2 would appear negative.
  const name = networkFilesystems.get(magic >>> 0);
  return name === undefined ? { name: 'local', network: false } : { name, network: true };
}

/** The filesystem that holds `path`, which exists. */
export function filesystemOf(path: string): Filesystem {
  return filesystemOfMagic(statfsSync(path).type);
}
