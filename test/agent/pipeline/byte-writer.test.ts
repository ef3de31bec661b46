import { expect, it } from 'vitest';
import { ByteReader } from '../../../agent/pipeline/byte-reader.ts';
import { ByteWriter } from '../../../agent/pipeline/byte-writer.ts';

/** Numbers of each kind, and texts, as each is written and read. */
const kinds: readonly [write: (to: ByteWriter, at: number) => void, read: (from: ByteReader) => unknown][] = [
  [(to, at) => to.u8(at % 256), (from) => from.u8()],
  [(to, at) => to.u32(at), (from) => from.u32()],
  [(to, at) => to.i32(-at), (from) => from.i32()],
  [(to, at) => to.f64(at / 3), (from) => from.f64()],
  [(to, at) => to.text(`text ${at}`), (from) => from.text()],
];

it.each([0, 1, 2, 3, 4])('grows under whatever is written when its memory is full (kind %d)', (kind) => {
  const [write, read] = kinds[kind]!;
  const writer = new ByteWriter();
  const count = 10_000;
  for (let at = 0; at < count; at++) write(writer, at);
  const reader = new ByteReader(writer.bytes);
  const found = Array.from({ length: count }, () => read(reader));
  expect(reader.ended).toBe(true);
  const values = [
    (at: number) => at % 256,
    (at: number) => at,
    (at: number) => 0 - at,
    (at: number) => at / 3,
  ];
  expect(found).toEqual(Array.from({ length: count }, (_, at) => values[kind]?.(at) ?? `text ${at}`));
});
