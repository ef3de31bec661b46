/** Which shared libraries an ELF file is linked against (`readelf -d` shows the same), without reading all of it. */
import { closeSync, openSync, readSync } from 'node:fs';

const elf_magic = 0x7f454c46;
const class_64 = 2;
const little_endian = 1;
/** Of the program header: a part that is loaded, and the table for the loader. */
const segmentTypes = { load: 1, dynamic: 2 } as const;
/** Of that table. */
const tags = { end: 0, needed: 1, names: 5 } as const;
const header_bytes = 64;
const entry_bytes = 16;
/** A table of names is longer; one name is not. */
const name_bytes_max = 256;
/** More is no library's table. */
const table_bytes_max = 1 << 20;

interface Segment {
  type: number;
  offset: number;
  address: number;
  file_bytes: number;
}

/** In the file's order; undefined: it is no 64-bit little-endian ELF file, or is cut off. */
export function librariesNeeded(path: string): string[] | undefined {
  const descriptor = openSync(path, 'r');
  const read = (offset: number, bytes: number): Buffer => {
    const buffer = Buffer.alloc(bytes);
    return buffer.subarray(0, readSync(descriptor, buffer, 0, bytes, offset));
  };
  try {
    const header = read(0, header_bytes);
    if (header.length < header_bytes || header.readUInt32BE(0) !== elf_magic) return undefined;
    if (header[4] !== class_64 || header[5] !== little_endian) return undefined;
    const segments = segmentsOf(header, read);
    const dynamic = segments.find(({ type }) => type === segmentTypes.dynamic);
    if (!dynamic || dynamic.file_bytes > table_bytes_max) return undefined;
    return namesIn(read(dynamic.offset, dynamic.file_bytes), segments, read);
  } finally {
    closeSync(descriptor);
  }
}

type Read = (offset: number, bytes: number) => Buffer;

function segmentsOf(header: Buffer, read: Read): Segment[] {
  const size = header.readUInt16LE(0x36);
  const table = read(Number(header.readBigUInt64LE(0x20)), size * header.readUInt16LE(0x38));
  return Array.from({ length: size === 0 ? 0 : Math.floor(table.length / size) }, (_, index) => {
    const at = index * size;
    return {
      type: table.readUInt32LE(at),
      offset: Number(table.readBigUInt64LE(at + 8)),
      address: Number(table.readBigUInt64LE(at + 16)),
      file_bytes: Number(table.readBigUInt64LE(at + 32)),
    };
  });
}

function namesIn(table: Buffer, segments: readonly Segment[], read: Read): string[] | undefined {
  const needed: number[] = [];
  let names_address: number | undefined;
  for (let at = 0; at + entry_bytes <= table.length; at += entry_bytes) {
    const tag = Number(table.readBigInt64LE(at));
    const value = Number(table.readBigUInt64LE(at + 8));
    if (tag === tags.end) break;
    if (tag === tags.needed) needed.push(value);
    if (tag === tags.names) names_address = value;
  }
  if (names_address === undefined) return needed.length === 0 ? [] : undefined;
  const address = names_address;
  const segment = segments.find(
    (one) =>
      one.type === segmentTypes.load && address >= one.address && address < one.address + one.file_bytes,
  );
  if (!segment) return undefined;
  const begin = segment.offset + address - segment.address;
  const names = needed.map((offset) => {
    const bytes = read(begin + offset, name_bytes_max);
    const end = bytes.indexOf(0);
    return end < 0 ? '' : bytes.toString('latin1', 0, end);
  });
  return names.includes('') ? undefined : names;
}
