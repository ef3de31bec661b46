/**
 * A request's body as it is sent: what was changed stands between parts of the client's own bytes, which are not
 * copied.
 */
export type BodyPieces = readonly Buffer[];

/** Bytes [start, end) of a body are replaced. */
export interface BodyEdit {
  start: number;
  end: number;
  text: string;
}

/** The bytes with edits that do not overlap; of those at one place the first comes first. */
export function spliced(bytes: Buffer, edits: readonly BodyEdit[]): BodyPieces {
  if (edits.length === 0) return [bytes];
  const pieces: Buffer[] = [];
  let at = 0;
  for (const { start, end, text } of edits.toSorted((a, b) => a.start - b.start)) {
    if (start > at) pieces.push(bytes.subarray(at, start));
    pieces.push(Buffer.from(text));
    at = end;
  }
  if (at < bytes.length) pieces.push(bytes.subarray(at));
  return pieces;
}

export function bytesOf(pieces: BodyPieces): number {
  let sum = 0;
  for (const { length } of pieces) sum += length;
  return sum;
}
