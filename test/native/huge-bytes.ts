import { readFileSync } from 'node:fs';

/** Bytes of this process's mappings at and behind an address that have huge pages of a memory file. */
export function huge_bytes(address: bigint, bytes: number): number {
  let [inside, sum] = [false, 0];
  for (const line of readFileSync('/proc/self/smaps', 'utf8').split('\n')) {
    const range = /^([0-9a-f]+)-([0-9a-f]+) /.exec(line);
    if (range)
      inside = BigInt(`0x${range[1]}`) < address + BigInt(bytes) && BigInt(`0x${range[2]}`) > address;
    const huge = /^ShmemPmdMapped: +(\d+) kB$/.exec(line);
    if (huge && inside) sum += Number(huge[1]) * 1024;
  }
  return sum;
}
