/**
 * Partitioned-gain packing (Tangram §3.2.2, Algorithm 1): fits new tensors into the free blocks of a pool and
 * clears what lies between blocks only where it must.
 *
 * A pool is seen as free blocks with obstacles between neighbours. A subspace is a run of blocks; merging it means
 * clearing all its inner obstacles. Splitting a subspace at an obstacle leaves that obstacle where it is, which is
 * the gain. The algorithm begins with everything merged and splits at the largest gains first, as long as the
 * tensors can be dealt out to the two sides. What differs from the paper's listing, and why:
 * - its line 21 refuses a tensor that is larger than the smaller side, against its own text; here a tensor fails
 *   only if it is larger than the roomier side;
 * - capacity counts free bytes, since resident tensors stay in the pool;
 * - all tensors between two free blocks are one obstacle: leaving one of them in its place leaves the others, too;
 * - where dealing to the roomier side fails, dealing to the fullest side that still fits is tried;
 * - a subspace without new tensors is left as it is and costs nothing.
 */

/** Free blocks and what lies between them. Block `i` and block `i + 1` are separated by obstacle `i`. */
export interface PackingSpace {
  /** Shape [n], bytes. */
  blocks: Float64Array;
  /** Shape [n − 1]: cost of clearing; Infinity where something must stay. */
  obstacles: Float64Array;
}

/** A run of blocks that is to be merged (where it is more than one), and the tensors that go there. */
export interface PackedSubspace {
  first_block: number;
  last_block: number;
  /** Indices into the sizes, largest first. */
  tensors: number[];
}

/** A subspace that may still be split: blocks, and where its tensors stand in their array. */
interface Pending {
  first: number;
  last: number;
  begin: number;
  end: number;
}

/** Packs the same tensors into one space after another; its arrays are used again. */
export class Packer {
  readonly #sizes: Float64Array;
  readonly #dealer: Dealer;
  readonly #gains: RangeMaximum;
  /** Bytes of all blocks before each. */
  readonly #before: Float64Array;

  /**
   * @param sizes bytes of each new tensor, in any order
   * @param blocks_max of a space
   */
  constructor(sizes: Float64Array, blocks_max: number) {
    this.#sizes = sizes;
    this.#dealer = new Dealer(sizes);
    this.#gains = new RangeMaximum(blocks_max);
    this.#before = new Float64Array(blocks_max + 1);
  }

  /** @returns subspaces with tensors; undefined where obstacles that must stay leave no way, or none was found */
  pack({ blocks, obstacles }: PackingSpace): PackedSubspace[] | undefined {
    const sizes = this.#sizes;
    const before = this.#before;
    const dealer = this.#dealer;
    const gains = this.#gains;
    if (sizes.length === 0) return [];
    if (blocks.length === 0) return undefined;
    for (let block = 0; block < blocks.length; block++) before[block + 1] = before[block]! + blocks[block]!;
    if (dealer.total > before[blocks.length]!) return undefined;
    dealer.collect();
    gains.fill(obstacles);
    const pending: Pending[] = [{ first: 0, last: blocks.length - 1, begin: 0, end: sizes.length }];
    const packed: PackedSubspace[] = [];
    for (let subspace = pending.pop(); subspace; subspace = pending.pop()) {
      const { first, last, begin, end } = subspace;
      let point = first < last ? gains.of(first, last) : undefined;
      // The largest gain mostly does; the others are brought in order only where it does not.
      let others: PointsByGain | undefined;
      while (point !== undefined) {
        const left = before[point + 1]! - before[first]!;
        const right = before[last + 1]! - before[point + 1]!;
        if (dealer.deal(begin, end, left, right)) break;
        if (obstacles[point] === Number.POSITIVE_INFINITY) return undefined;
        others ??= new PointsByGain(gains, obstacles, first, last, point);
        point = others.next();
      }
      if (point === undefined) {
        packed.push({ first_block: first, last_block: last, tensors: dealer.tensors(begin, end) });
        continue;
      }
      const middle = dealer.partition(begin, end);
      if (middle > begin) pending.push({ first, last: point, begin, end: middle });
      if (end > middle) pending.push({ first: point + 1, last, begin: middle, end });
    }
    return packed;
  }
}

/** The points of a range but its largest, largest gain first, lower ones first among equals. */
class PointsByGain {
  readonly #gains: RangeMaximum;
  readonly #obstacles: Float64Array;
  /** The largest of ranges that no point was taken from, and their bounds: [begin, end). */
  readonly #open: { point: number; begin: number; end: number }[] = [];

  constructor(gains: RangeMaximum, obstacles: Float64Array, begin: number, end: number, largest: number) {
    this.#gains = gains;
    this.#obstacles = obstacles;
    this.#add(begin, largest);
    this.#add(largest + 1, end);
  }

  next(): number | undefined {
    const obstacles = this.#obstacles;
    let best = 0;
    for (let index = 1; index < this.#open.length; index++) {
      const point = this.#open[index]!.point;
      const other = this.#open[best]!.point;
      const more = obstacles[point]! - obstacles[other]!;
      // Two that must stay differ by NaN.
      if (more > 0 || (!(more < 0) && point < other)) best = index;
    }
    const taken = this.#open[best];
    if (!taken) return undefined;
    this.#open[best] = this.#open.at(-1)!;
    this.#open.pop();
    this.#add(taken.begin, taken.point);
    this.#add(taken.point + 1, taken.end);
    return taken.point;
  }

  #add(begin: number, end: number): void {
    if (begin < end) this.#open.push({ point: this.#gains.of(begin, end), begin, end });
  }
}

/** Where the largest value of a range is, the first of equals: a sparse table of ranges in powers of two. */
class RangeMaximum {
  #values: Float64Array = new Float64Array(0);
  /** Row `power`, column `begin`: the largest of [begin, begin + 2^power). */
  readonly #table: Int32Array;

  constructor(values_max: number) {
    this.#table = new Int32Array(values_max * (32 - Math.clz32(values_max)));
  }

  fill(values: Float64Array): void {
    const { length } = values;
    const table = this.#table;
    for (let index = 0; index < length; index++) table[index] = index;
    for (let width = 2, row = length; width <= length; width *= 2, row += length) {
      const above = row - length;
      const half = width / 2;
      for (let index = 0; index + width <= length; index++) {
        const left = table[above + index]!;
        const right = table[above + index + half]!;
        table[row + index] = values[right]! > values[left]! ? right : left;
      }
    }
    this.#values = values;
  }

  /** Of [begin, end), which is not empty. */
  of(begin: number, end: number): number {
    const power = 31 - Math.clz32(end - begin);
    const row = power * this.#values.length;
    const left = this.#table[row + begin]!;
    const right = this.#table[row + end - (1 << power)]!;
    return this.#values[right]! > this.#values[left]! ? right : left;
  }
}

const two_to_40 = 2 ** 40;
const index_values = 2 ** 12;

/**
 * Indices by descending value, lower indices first among equals. Up to 4,096 values are told apart by twelve digits:
 * value and index share a double, so that the engine's own sort of doubles does it, without a comparator.
 */
function descending(values: Float64Array): Int32Array {
  const { length } = values;
  if (length > index_values)
    return Int32Array.from(values.keys()).sort((a, b) => values[b]! - values[a]! || a - b);
  let largest = 0;
  for (let index = 0; index < length; index++)
    if (values[index]! > largest && values[index] !== Number.POSITIVE_INFINITY) largest = values[index]!;
  const scale = largest > 0 ? two_to_40 / largest : 0;
  const keys = new Float64Array(length);
  for (let index = 0; index < length; index++) {
    const value = values[index]!;
    const digits = value === Number.POSITIVE_INFINITY ? two_to_40 + 1 : Math.floor(value * scale);
    keys[index] = index - digits * index_values;
  }
  keys.sort();
  const order = new Int32Array(length);
  for (let index = 0; index < length; index++) {
    const low = keys[index]! % index_values;
    order[index] = low < 0 ? low + index_values : low;
  }
  return order;
}

/** TryPacking of Algorithm 1. Keeps its arrays between attempts: a plan makes thousands. */
class Dealer {
  readonly #sizes: Float64Array;
  readonly #largest_first: Int32Array;
  readonly #tensors: Int32Array;
  /** Bytes of each, in the same order. */
  readonly #bytes: Float64Array;
  /** Of the tensors dealt last: 1 where it goes to the left. */
  readonly #goesLeft: Uint8Array;
  readonly #spare: Int32Array;
  /** Of all tensors, bytes. */
  readonly total: number;

  constructor(sizes: Float64Array) {
    const { length } = sizes;
    this.#sizes = sizes;
    this.#largest_first = descending(sizes);
    this.#tensors = new Int32Array(length);
    this.#bytes = new Float64Array(length);
    this.#goesLeft = new Uint8Array(length);
    this.#spare = new Int32Array(length);
    let total = 0;
    for (let index = 0; index < length; index++) total += sizes[this.#largest_first[index]!]!;
    this.total = total;
  }

  /** All tensors are to be dealt again. */
  collect(): void {
    this.#tensors.set(this.#largest_first);
    for (let index = 0; index < this.#bytes.length; index++)
      this.#bytes[index] = this.#sizes[this.#tensors[index]!]!;
  }

  tensors(begin: number, end: number): number[] {
    const own: number[] = [];
    for (let index = begin; index < end; index++) own.push(this.#tensors[index]!);
    return own;
  }

  /** Tries to deal the tensors from `begin` to `end` out to two sides of so many bytes. */
  deal(begin: number, end: number, left: number, right: number): boolean {
    const roomier = Math.max(left, right);
    if (begin < end && this.#bytes[begin]! > roomier) return false;
    return this.#deal(begin, end, left, right, false) || this.#deal(begin, end, left, right, true);
  }

  /** Brings those that were dealt to the left to the front. @returns where the others begin */
  partition(begin: number, end: number): number {
    const tensors = this.#tensors;
    const sizes = this.#sizes;
    const bytes = this.#bytes;
    const goesLeft = this.#goesLeft;
    const spare = this.#spare;
    let front = begin;
    let back = 0;
    for (let index = begin; index < end; index++) {
      const tensor = tensors[index]!;
      if (goesLeft[index] === 1) tensors[front++] = tensor;
      else spare[back++] = tensor;
    }
    if (back === 0 || front === begin) return front;
    for (let index = 0; index < back; index++) tensors[front + index] = spare[index]!;
    for (let index = begin; index < end; index++) bytes[index] = sizes[tensors[index]!]!;
    return front;
  }

  #deal(begin: number, end: number, left_bytes: number, right_bytes: number, tight: boolean): boolean {
    const sizes = this.#bytes;
    const goesLeft = this.#goesLeft;
    let left = left_bytes;
    let right = right_bytes;
    for (let index = begin; index < end; index++) {
      const bytes = sizes[index]!;
      const leftIsRoomier = left >= right;
      if (bytes > (leftIsRoomier ? left : right)) return false;
      const goesToSmaller = tight && bytes <= (leftIsRoomier ? right : left);
      if (leftIsRoomier !== goesToSmaller) {
        goesLeft[index] = 1;
        left -= bytes;
      } else {
        goesLeft[index] = 0;
        right -= bytes;
      }
    }
    return true;
  }
}
