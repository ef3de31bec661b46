import { frame_header_bytes } from '../../native/fabric/mover.ts';

const magic = 0x48_53_4b_56; // "HSKV"
const version = 1;

/** What stands before the bytes of a run on a socket: which run of which transfer, and how many. */
export function frameHeader(transfer: string, run: number, bytes: number): Buffer {
  const header = Buffer.alloc(frame_header_bytes);
  header.writeUInt32BE(magic, 0);
  header.writeUInt16LE(version, 4);
  header.write(transfer, 8, 'hex');
  header.writeUInt32LE(run, 16);
  header.writeBigUInt64LE(BigInt(bytes), 24);
  return header;
}
