/**
 * Where experts of a mixture lie on a device that has not room for all of them. A window is a row of slots, each of
 * which holds any expert of the window's layers; kernels see it as one tensor of so many matrices. A batch may need all
 * experts of a layer at once, so no window has fewer slots than a layer has experts.
 *
 *   window   [ 3:17 | 3:90 | 7:17 | – | 3:2 | … ]     layer 3 wants its experts 2, 17 and 90: slots 4, 0 and 1
 *
 * Windows in the ring are lost when another model has it; those of the part that stays are not.
 */

/** Layers whose experts have the same types and shapes. */
export interface ExpertKind {
  layers: readonly number[];
  /** Of an expert, with all of its matrices. */
  slot_bytes: number;
}

export interface PlannedWindow {
  /** Index of its kind. */
  kind: number;
  stays: boolean;
  slots: number;
  layers: number[];
}

/**
 * Slots of a window, in experts of a layer. Higher: popular experts of more layers compete for the same room; lower:
 * smaller tensors, which is what kernels are made for.
 */
const window_layers_max = 4;

/**
 * @param experts of a layer
 * @param ring_bytes, resident_bytes for windows of either sort
 * @returns undefined where the ring has no room for the windows that have to lie there
 */
export function planExpertWindows(
  kinds: readonly ExpertKind[],
  experts: number,
  ring_bytes: number,
  resident_bytes: number,
): PlannedWindow[] | undefined {
  const weights = kinds.map(({ layers, slot_bytes }) => layers.length * slot_bytes);
  const whole = weights.reduce((sum, weight) => sum + weight, 0);
  const staying = kinds.map(({ layers, slot_bytes }, kind) => {
    const slots = Math.floor((resident_bytes * weights[kind]!) / whole / slot_bytes);
    return slots < experts ? 0 : Math.min(slots, layers.length * experts);
  });
  const ringed = [...kinds.keys()].filter((kind) => staying[kind]! < kinds[kind]!.layers.length * experts);
  const least_bytes = ringed.reduce((sum, kind) => sum + experts * kinds[kind]!.slot_bytes, 0);
  if (least_bytes > ring_bytes) return undefined;
  const ringed_weight = ringed.reduce((sum, kind) => sum + weights[kind]!, 0);
  return kinds.flatMap(({ layers, slot_bytes }, kind) => {
    const windows = cut(staying[kind]!, experts).map((slots) => ({ kind, stays: true, slots }));
    if (ringed.includes(kind)) {
      const more_bytes = ((ring_bytes - least_bytes) * weights[kind]!) / ringed_weight;
      const slots = Math.min(experts + Math.floor(more_bytes / slot_bytes), layers.length * experts);
      windows.push(...cut(slots, experts).map((own) => ({ kind, stays: false, slots: own })));
    }
    return shareOut(layers, windows);
  });
}

/** So many slots in windows that are no longer than they should be, and no shorter than a layer. */
function cut(slots: number, experts: number): number[] {
  const count = Math.ceil(slots / (window_layers_max * experts));
  return Array.from(
    { length: count },
    (_, index) => Math.floor(((index + 1) * slots) / count) - Math.floor((index * slots) / count),
  );
}

/** Each layer comes to the window that has most slots for it and those before it (D'Hondt). */
function shareOut(
  layers: readonly number[],
  windows: readonly Omit<PlannedWindow, 'layers'>[],
): PlannedWindow[] {
  const shared: PlannedWindow[] = windows.map((window) => ({ ...window, layers: [] }));
  const room = ({ slots, layers: own }: PlannedWindow): number => slots / (own.length + 1);
  for (const layer of layers)
    shared.reduce((best, window) => (room(window) > room(best) ? window : best)).layers.push(layer);
  return shared.filter(({ layers: own }) => own.length > 0);
}
