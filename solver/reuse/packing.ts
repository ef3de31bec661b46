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
  tensors: Int32Array;
}

interface Pending {
  first: number;
  last: number;
  tensors: Int32Array;
  /** Inner obstacles, largest gain first. */
  points: Int32Array;
}

/**
 * @param sizes bytes of each new tensor, in any order
 * @returns subspaces with tensors; undefined where obstacles that must stay leave no way, or none was found
 */
export function packByPartitionedGain(
  space: PackingSpace,
  sizes: Float64Array,
): PackedSubspace[] | undefined {
  const { blocks, obstacles } = space;
  const before = new Float64Array(blocks.length + 1);
  for (let block = 0; block < blocks.length; block++) before[block + 1] = before[block]! + blocks[block]!;
  const dealer = new Dealer(sizes);
  const tensors = descending(sizes);
  if (sizes.length === 0) return [];
  if (blocks.length === 0) return undefined;
  if (dealer.total(tensors) > before[blocks.length]!) return undefined;
  const pending: Pending[] = [{ first: 0, last: blocks.length - 1, tensors, points: descending(obstacles) }];
  const packed: PackedSubspace[] = [];
  for (let subspace = pending.pop(); subspace; subspace = pending.pop()) {
    const { first, last, points } = subspace;
    let split = false;
    for (const point of points) {
      const left = before[point + 1]! - before[first]!;
      const right = before[last + 1]! - before[point + 1]!;
      if (dealer.deal(subspace.tensors, left, right)) {
        const lefts = dealer.left();
        const rights = dealer.right();
        if (lefts.length > 0)
          pending.push({ first, last: point, tensors: lefts, points: between(points, first, point) });
        if (rights.length > 0)
          pending.push({
            first: point + 1,
            last,
            tensors: rights,
            points: between(points, point + 1, last),
          });
        split = true;
        break;
      }
      if (obstacles[point] === Number.POSITIVE_INFINITY) return undefined;
    }
    if (!split) packed.push({ first_block: first, last_block: last, tensors: subspace.tensors });
  }
  return packed;
}

/** Those of the points that are obstacles between two of the blocks, in their order. */
function between(points: Int32Array, first: number, last: number): Int32Array {
  const inner = new Int32Array(last - first);
  let count = 0;
  for (let index = 0; index < points.length; index++) {
    const point = points[index]!;
    if (point >= first && point < last) inner[count++] = point;
  }
  return inner;
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
  readonly #left: Int32Array;
  readonly #right: Int32Array;
  #lefts = 0;
  #rights = 0;

  constructor(sizes: Float64Array) {
    this.#sizes = sizes;
    this.#left = new Int32Array(sizes.length);
    this.#right = new Int32Array(sizes.length);
  }

  total(tensors: Int32Array): number {
    let sum = 0;
    for (const tensor of tensors) sum += this.#sizes[tensor]!;
    return sum;
  }

  /** @param tensors largest first */
  deal(tensors: Int32Array, left: number, right: number): boolean {
    return this.#deal(tensors, left, right, false) || this.#deal(tensors, left, right, true);
  }

  #deal(tensors: Int32Array, leftBytes: number, rightBytes: number, tight: boolean): boolean {
    let left = leftBytes;
    let right = rightBytes;
    this.#lefts = 0;
    this.#rights = 0;
    for (let index = 0; index < tensors.length; index++) {
      const tensor = tensors[index]!;
      const bytes = this.#sizes[tensor]!;
      const roomier = Math.max(left, right);
      if (bytes > roomier) return false;
      const smaller = Math.min(left, right);
      const goesToSmaller = tight && bytes <= smaller;
      if (left >= right !== goesToSmaller) {
        this.#left[this.#lefts++] = tensor;
        left -= bytes;
      } else {
        this.#right[this.#rights++] = tensor;
        right -= bytes;
      }
    }
    return true;
  }

  left(): Int32Array {
    return this.#left.slice(0, this.#lefts);
  }

  right(): Int32Array {
    return this.#right.slice(0, this.#rights);
  }
}
