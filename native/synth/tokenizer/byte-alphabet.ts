/**
 * The byte alphabet of byte-level BPE (GPT-2): every byte has one printable character, so that any bytes can be
 * written as text. Printable Latin-1 stands for itself; the other 68 bytes become U+0100 and following.
 */
export const byteCharacters: readonly string[] = buildAlphabet();

/** UTF-8 bytes of `text` in the alphabet. */
export function toByteCharacters(text: string): string {
  let result = '';
  for (const byte of Buffer.from(text, 'utf8')) result += byteCharacters[byte]!;
  return result;
}

function buildAlphabet(): string[] {
  const printable = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}
