/** Names of blocks stand for all before them. */
export function blocksOf(kinds: readonly number[]): Uint32Array {
  let name = 7;
  return Uint32Array.from(kinds, (kind) => {
    name = (Math.imul(name, 31) + kind) >>> 0;
    return name;
  });
}
