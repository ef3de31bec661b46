/** The Luby sequence 1 1 2 1 1 2 4 …, `index` from 1 (Luby, Sinclair and Zuckerman, 1993). */
export function luby(index: number): number {
  for (;;) {
    const bits = Math.floor(Math.log2(index + 1));
    if (2 ** bits === index + 1) return 2 ** (bits - 1);
    index -= 2 ** bits - 1;
  }
}
