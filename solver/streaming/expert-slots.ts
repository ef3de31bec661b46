/**
 * Which experts give way where others are to come: those that tokens are sent to least often, and of equals those whose
 * layer is computed last from now on, since layers follow one another in a circle (the choice of Belady, IBM Systems
 * Journal 5(2), 1966, as far as routing can be foreseen).
 */

export interface HeldExpert {
  layer: number;
  expert: number;
}

export interface SlotQuestion {
  /** By slot; undefined: it is free. */
  holders: readonly (HeldExpert | undefined)[];
  /** So many are to come. */
  count: number;
  /** The layer that is computed now, and how many there are. */
  layer: number;
  n_layer: number;
  /** How likely a token is sent to it. */
  probability(held: HeldExpert): number;
  /** It is needed where it is. */
  isPinned(slot: number): boolean;
}

/** @returns slots in ascending order; fewer than `count` where the others are needed */
export function slotsToTake(question: SlotQuestion): number[] {
  const { holders, count, layer, n_layer, probability, isPinned } = question;
  const free: number[] = [];
  const held: { slot: number; probability: number; distance: number }[] = [];
  holders.forEach((holder, slot) => {
    if (isPinned(slot)) return;
    if (holder === undefined) free.push(slot);
    // What this layer itself does not need now is needed a whole round later.
    else
      held.push({
        slot,
        probability: probability(holder),
        distance: (holder.layer - layer + n_layer) % n_layer || n_layer,
      });
  });
  const taken = free.slice(0, count);
  while (taken.length < count && held.length > 0) {
    let least = 0;
    held.forEach((one, index) => {
      const best = held[least]!;
      if (one.probability < best.probability) least = index;
      else if (one.probability === best.probability && one.distance > best.distance) least = index;
    });
    taken.push(held[least]!.slot);
    held.splice(least, 1);
  }
  return taken.sort((a, b) => a - b);
}
