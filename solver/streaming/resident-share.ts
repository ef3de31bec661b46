/**
 * Which tensors stay on the device while the others are streamed. A resident tensor spares the link its bytes with
 * every use, so what counts is reuse per byte: uses a second times bytes that cross, by the bytes that it takes. Of
 * equals those are taken that lie evenly between streamed ones, so that the copy of the next streamed tensor has the
 * resident ones' computation to hide behind.
 */

export interface StreamedTensor {
  /** Bytes that it takes on the device. */
  bytes: number;
  /** How often its bytes are needed; of an expert, how often it is chosen. */
  uses_per_s: number;
  /** Share of its bytes that a use reads (rows of an embedding: hardly any). Default: 1. */
  read_share?: number;
  /** Place in the order of computation. */
  order: number;
}

/** Bytes a second that do not cross the link for a resident tensor. */
export function sparedLink_bytes_per_s({ bytes, uses_per_s, read_share = 1 }: StreamedTensor): number {
  return bytes * uses_per_s * read_share;
}

/**
 * Indices of the tensors that stay, in at most `room_bytes`. By reuse per byte, what fits; a single tensor instead
 * where it alone spares more: so at least half of the best choice is reached (Kellerer et al., Knapsack Problems,
 * §2.5), and all of it where tensors have one size.
 */
export function residentTensors(tensors: readonly StreamedTensor[], room_bytes: number): number[] {
  const useful = [...tensors.keys()].filter((index) => sparedLink_bytes_per_s(tensors[index]!) > 0);
  const density = (index: number): number => sparedLink_bytes_per_s(tensors[index]!) / tensors[index]!.bytes;
  const order = useful.sort(
    (a, b) => density(b) - density(a) || spread(tensors[a]!.order) - spread(tensors[b]!.order) || a - b,
  );
  const chosen: number[] = [];
  let [left, spared] = [room_bytes, 0];
  for (const index of order) {
    const tensor = tensors[index]!;
    if (tensor.bytes > left) continue;
    chosen.push(index);
    left -= tensor.bytes;
    spared += sparedLink_bytes_per_s(tensor);
  }
  const alone = order
    .filter((index) => tensors[index]!.bytes <= room_bytes)
    .reduce<number | undefined>(
      (best, index) =>
        best === undefined || sparedLink_bytes_per_s(tensors[index]!) > sparedLink_bytes_per_s(tensors[best]!)
          ? index
          : best,
      undefined,
    );
  const better = alone !== undefined && sparedLink_bytes_per_s(tensors[alone]!) > spared;
  return (better ? [alone] : chosen).sort((a, b) => a - b);
}

/** The bits of a number read backwards: 0, 1/2, 1/4, 3/4, …, which spreads any beginning evenly (van der Corput). */
function spread(order: number): number {
  let [value, place] = [0, 0.5];
  for (let rest = order; rest > 0; rest >>= 1) {
    if (rest & 1) value += place;
    place /= 2;
  }
  return value;
}
