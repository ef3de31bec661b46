/**
 * The k largest of n values without sorting n: one pass with a bounded min-heap, O(n + k log k) where
 * large values are rare, O(n log k) at worst.
 *
 * @param values shape [n]
 * @returns indices of the k largest, largest first; of equal values the lower index comes first. NaN is never chosen.
 */
export function selectTop(values: Float32Array | Float64Array, k: number): Int32Array {
  const size = Math.min(k, values.length);
  const heap = new Int32Array(size);
  if (size === 0) return heap;
  let filled = 0;
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!;
    if (filled === size) {
      // The root is the worst kept; an equal value with a higher index is worse still.
      if (!(value > values[heap[0]!]!)) continue;
      heap[0] = index;
      siftDown(heap, 0, filled, values);
    } else if (!Number.isNaN(value)) {
      heap[filled] = index;
      siftUp(heap, filled++, values);
    }
  }
  for (let end = filled - 1; end > 0; end--) {
    const worst = heap[0]!;
    heap[0] = heap[end]!;
    heap[end] = worst;
    siftDown(heap, 0, end, values);
  }
  return heap.subarray(0, filled);
}

function worse(values: Float32Array | Float64Array, a: number, b: number): boolean {
  const difference = values[a]! - values[b]!;
  return difference < 0 || (values[a] === values[b] && a > b);
}

function siftUp(heap: Int32Array, start: number, values: Float32Array | Float64Array): void {
  let child = start;
  while (child > 0) {
    const parent = (child - 1) >> 1;
    if (!worse(values, heap[child]!, heap[parent]!)) return;
    swap(heap, child, parent);
    child = parent;
  }
}

function siftDown(
  heap: Int32Array,
  start: number,
  length: number,
  values: Float32Array | Float64Array,
): void {
  let parent = start;
  for (;;) {
    let worst = parent;
    const left = 2 * parent + 1;
    if (left < length && worse(values, heap[left]!, heap[worst]!)) worst = left;
    if (left + 1 < length && worse(values, heap[left + 1]!, heap[worst]!)) worst = left + 1;
    if (worst === parent) return;
    swap(heap, parent, worst);
    parent = worst;
  }
}

function swap(heap: Int32Array, a: number, b: number): void {
  const kept = heap[a]!;
  heap[a] = heap[b]!;
  heap[b] = kept;
}
