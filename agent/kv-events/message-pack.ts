/**
 * Reads MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) from engines, which are not trusted to say
 * how much is coming: a list is as long as what stands in it, whatever its head claims.
 */

export type Packed = null | boolean | number | bigint | string | Uint8Array | Packed[] | Map<string, Packed>;

/** Deeper than anything that an engine says of its blocks. */
const depth_max = 8;

/** @throws Error where it is none, is cut off, is too deep, or has something behind it */
export function readMessagePack(bytes: Buffer): Packed {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (!reader.atEnd) throw new Error('something stands behind a value in MessagePack');
  return value;
}

class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get atEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  value(depth: number): Packed {
    const head = this.#uint(1);
    if (head < 0x80) return head;
    if (head >= 0xe0) return head - 0x100;
    if (head < 0x90) return this.#map(head & 0x0f, depth);
    if (head < 0xa0) return this.#list(head & 0x0f, depth);
    if (head < 0xc0) return this.#text(head & 0x1f);
    return this.#tagged(head, depth);
  }

  #tagged(head: number, depth: number): Packed {
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return head === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.#take(this.#uint(1 << (head - 0xc4)));
      case 0xca:
        return this.#take(4).readFloatBE();
      case 0xcb:
        return this.#take(8).readDoubleBE();
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#uint(1 << (head - 0xcc));
      case 0xcf:
        return narrowed(this.#take(8).readBigUInt64BE());
      case 0xd0:
      case 0xd1:
      case 0xd2:
        return this.#take(1 << (head - 0xd0)).readIntBE(0, 1 << (head - 0xd0));
      case 0xd3:
        return narrowed(this.#take(8).readBigInt64BE());
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#uint(1 << (head - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#list(this.#uint(head === 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return this.#map(this.#uint(head === 0xde ? 2 : 4), depth);
      default:
        throw new Error(`MessagePack of a kind that no engine sends: 0x${head.toString(16)}`);
    }
  }

  #take(length: number): Buffer {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw new Error('MessagePack that is cut off');
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }

  #uint(length: number): number {
    return this.#take(length).readUIntBE(0, length);
  }

  #text(length: number): string {
    return this.#take(length).toString('utf8');
  }

  #list(length: number, depth: number): Packed[] {
    this.#enter(length, depth);
    const list: Packed[] = [];
    for (let index = 0; index < length; index++) list.push(this.value(depth + 1));
    return list;
  }

  #map(length: number, depth: number): Map<string, Packed> {
    this.#enter(2 * length, depth);
    const map = new Map<string, Packed>();
    for (let index = 0; index < length; index++) {
      const key = this.value(depth + 1);
      if (typeof key !== 'string') throw new Error('MessagePack with a key that is no text');
      map.set(key, this.value(depth + 1));
    }
    return map;
  }

  /** Each entry takes a byte at least. */
  #enter(entries: number, depth: number): void {
    if (depth >= depth_max) throw new Error('MessagePack that is too deep');
    if (entries > this.#bytes.length - this.#at) throw new Error('MessagePack that is cut off');
  }
}

function narrowed(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
