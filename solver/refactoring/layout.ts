/**
 * From one pipeline to another of the same model: what each device loads, what it may release, and whose KV goes
 * where (FlexPipe §6, Fig. 6a and 6c). Layers that stay where they are keep weights and KV in place.
 */

/** Operators [begin, end) of a model. */
export interface OperatorRange {
  begin: number;
  end: number;
}

/** A stage and the device that computes it. */
export interface PlacedStage extends OperatorRange {
  device: string;
}

/** Stages in the order of computation: they follow each other without a gap, each on a device of its own. */
export type PipelineLayout = readonly PlacedStage[];

/** KV of operators [begin, end) that goes from one device to another. */
export interface KvTransfer extends OperatorRange {
  from: string;
  to: string;
}

/** What a device has to load, or need not keep. */
export interface DeviceRanges {
  device: string;
  ranges: OperatorRange[];
}

export interface LayoutChange {
  /** Every device of the new layout that lacks operators of its stage. */
  loads: DeviceRanges[];
  /** Every device of the old layout that has operators which the new one computes elsewhere. */
  releases: DeviceRanges[];
  transfers: KvTransfer[];
}

/** @throws RangeError: the two are not of one model, have a gap, or name a device twice */
export function planLayoutChange(from: PipelineLayout, to: PipelineLayout): LayoutChange {
  const n_operators = checkLayout(from);
  if (checkLayout(to) !== n_operators)
    throw new RangeError(`a pipeline of ${n_operators} operators cannot become one of ${to.at(-1)?.end}`);
  return {
    loads: differences(to, from),
    releases: differences(from, to),
    transfers: transfersBetween(from, to),
  };
}

/** @returns how many operators the model has */
function checkLayout(layout: PipelineLayout): number {
  let at = 0;
  const devices = new Set<string>();
  for (const { device, begin, end } of layout) {
    if (begin !== at || end <= begin)
      throw new RangeError(`a stage of operators [${begin}, ${end}) stands where operator ${at} is to come`);
    if (devices.has(device)) throw new RangeError(`two stages are on device ${device}`);
    devices.add(device);
    at = end;
  }
  if (at === 0) throw new RangeError('a pipeline without stages');
  return at;
}

/** What each device has in `a` and has not in `b`. */
function differences(a: PipelineLayout, b: PipelineLayout): DeviceRanges[] {
  return a.flatMap(({ device, begin, end }) => {
    const other = b.find((stage) => stage.device === device);
    const ranges = other ? without({ begin, end }, other) : [{ begin, end }];
    return ranges.length > 0 ? [{ device, ranges }] : [];
  });
}

function without({ begin, end }: OperatorRange, other: OperatorRange): OperatorRange[] {
  return [
    { begin, end: Math.min(end, other.begin) },
    { begin: Math.max(begin, other.end), end },
  ].filter((range) => range.end > range.begin);
}

/** One for each pair of stages that overlap on different devices; neighbours of one pair are one range already. */
function transfersBetween(from: PipelineLayout, to: PipelineLayout): KvTransfer[] {
  return from.flatMap((source) =>
    to.flatMap((target) => {
      const begin = Math.max(source.begin, target.begin);
      const end = Math.min(source.end, target.end);
      if (begin >= end || source.device === target.device) return [];
      return [{ from: source.device, to: target.device, begin, end }];
    }),
  );
}
