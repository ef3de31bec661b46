/** Which versions of shared libraries' symbols an ELF file asks for (`objdump -T` shows the same, symbol by symbol). */

const elfMagic = 0x7f454c46;
const class64 = 2;
const littleEndian = 1;
/** SHT_GNU_verneed of the ELF specification's GNU extensions. */
const neededVersions = 0x6ffffffe;

interface Section {
  type: number;
  offset: number;
  /** Entries in the section, for sections that say it here. */
  info: number;
  /** Number of the section with the names. */
  link: number;
}

/**
 * `['GLIBC_2.2.5', 'GLIBCXX_3.4.21', …]` in the file's order; undefined: no ELF file.
 * @throws Error for an ELF file of another kind than Linux's 64-bit little-endian one
 */
export function symbolVersionsNeeded(bytes: Buffer): string[] | undefined {
  if (bytes.length < 64 || bytes.readUInt32BE(0) !== elfMagic) return undefined;
  if (bytes[4] !== class64 || bytes[5] !== littleEndian)
    throw new Error(`an ELF file of class ${bytes[4]} and byte order ${bytes[5]}, not 64-bit little-endian`);
  const sections = sectionsOf(bytes);
  return sections
    .filter(({ type }) => type === neededVersions)
    .flatMap((section) => namesIn(bytes, section, sections[section.link]!.offset));
}

function sectionsOf(bytes: Buffer): Section[] {
  const table = Number(bytes.readBigUInt64LE(0x28));
  const size = bytes.readUInt16LE(0x3a);
  return Array.from({ length: bytes.readUInt16LE(0x3c) }, (_, index) => {
    const at = table + index * size;
    return {
      type: bytes.readUInt32LE(at + 4),
      offset: Number(bytes.readBigUInt64LE(at + 24)),
      link: bytes.readUInt32LE(at + 40),
      info: bytes.readUInt32LE(at + 44),
    };
  });
}

/** A list of libraries (Verneed), each with a list of versions (Vernaux); both are chained by distances. */
function namesIn(bytes: Buffer, { offset, info }: Section, names: number): string[] {
  const found: string[] = [];
  for (let library = 0, at = offset; library < info; library++) {
    const versions = bytes.readUInt16LE(at + 2);
    for (let version = 0, aux = at + bytes.readUInt32LE(at + 8); version < versions; version++) {
      const name = names + bytes.readUInt32LE(aux + 8);
      found.push(bytes.toString('latin1', name, bytes.indexOf(0, name)));
      aux += bytes.readUInt32LE(aux + 12);
    }
    at += bytes.readUInt32LE(at + 12);
  }
  return found;
}
