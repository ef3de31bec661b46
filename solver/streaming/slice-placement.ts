/**
 * What runs on which slice, where slices share the link of their superchip. A model in use on a slice needs one
 * iteration in every time between two tokens; so slices have a budget of time, links one of bytes, and each slice one
 * of KV. A request of a model that is in use there joins its iterations, whose weights cross the link once for all.
 */

export interface ModelInUse {
  model: string;
  /** With the rows that it has now, at the slice's own rate of the link. */
  iteration_ms: number;
  link_bytes: number;
  /** One is due every so often. */
  tpot_ms: number;
}

export interface SliceState {
  id: string;
  /** Which link it reads over. */
  link: string;
  in_use: readonly ModelInUse[];
  kv_bytes_free: number;
}

export interface PlacedRequest {
  model: string;
  kv_bytes: number;
  tpot_ms: number;
  /** What it would take on each slice, by id. */
  on: (slice: string) => { iteration_ms: number; link_bytes: number };
}

export interface PlacementBudgets {
  /** Of a slice's time, for the iterations that are due. Lower: prompts have more room; higher: fewer slices. */
  time_share_max: number;
  /** Of a link's rate. Lower: co-runners are disturbed less; higher: fewer links. */
  link_share_max: number;
}

export const placement_budgets: PlacementBudgets = { time_share_max: 0.9, link_share_max: 0.9 };

export interface PlacementVerdict {
  /** Absent: it waits. */
  slice?: string;
  because: string;
  /** Of the budget that is tightest, with the request; at most 1 where all hold. */
  load: number;
}

type Budget = 'time' | 'the link';

interface Weighed {
  state: SliceState;
  load: number;
  tightest: Budget;
}

/**
 * The slice whose tightest budget the request uses least. Joining a slice where its model is in use loads no link any
 * further, so requests of one model stay together until time is short there. It waits where no slice has the KV.
 * @param links bytes a second of each link
 */
export function placeOnSlice(
  request: PlacedRequest,
  slices: readonly SliceState[],
  links: ReadonlyMap<string, number>,
  budgets: PlacementBudgets = placement_budgets,
): PlacementVerdict {
  const roomy = slices.filter(({ kv_bytes_free }) => kv_bytes_free >= request.kv_bytes);
  if (roomy.length === 0)
    return { because: 'no slice has memory for its KV now', load: Number.POSITIVE_INFINITY };
  const demand = linkDemands(slices);
  const weighed = roomy.map((state) => weigh(request, state, demand, links, budgets));
  const { state, load, tightest } = weighed.reduce((best, next) => (next.load < best.load ? next : best));
  const percent = `${(100 * load).toFixed(0)} % of its budget of ${tightest}`;
  return {
    slice: state.id,
    load,
    because: load <= 1 ? `it uses ${percent}` : `no slice has budgets for it; this one would use ${percent}`,
  };
}

/**
 * Of the budget that is tightest on a slice with the request; at most 1 where all hold.
 * @param slices the others that use its link among them
 */
export function budgetLoad(
  request: Omit<PlacedRequest, 'kv_bytes'>,
  slice: SliceState,
  slices: readonly SliceState[],
  links: ReadonlyMap<string, number>,
  budgets: PlacementBudgets = placement_budgets,
): number {
  return weigh(request, slice, linkDemands(slices), links, budgets).load;
}

/** Bytes a second that iterations which are due read over each link. */
export function linkDemands(slices: readonly Pick<SliceState, 'link' | 'in_use'>[]): Map<string, number> {
  const demand = new Map<string, number>();
  for (const { link, in_use } of slices)
    demand.set(
      link,
      in_use.reduce((sum, own) => sum + byteRate(own), demand.get(link) ?? 0),
    );
  return demand;
}

function byteRate({ link_bytes, tpot_ms }: { link_bytes: number; tpot_ms: number }): number {
  return (1000 * link_bytes) / tpot_ms;
}

function weigh(
  request: Omit<PlacedRequest, 'kv_bytes'>,
  state: SliceState,
  demand: ReadonlyMap<string, number>,
  links: ReadonlyMap<string, number>,
  budgets: PlacementBudgets,
): Weighed {
  const { iteration_ms, link_bytes } = request.on(state.id);
  const others = state.in_use.filter(({ model }) => model !== request.model);
  const known = state.in_use.find(({ model }) => model === request.model);
  const tpot_ms = Math.min(request.tpot_ms, known?.tpot_ms ?? Number.POSITIVE_INFINITY);
  const time_share = others.reduce(
    (sum, own) => sum + own.iteration_ms / own.tpot_ms,
    iteration_ms / tpot_ms,
  );
  const bytes_per_s =
    (demand.get(state.link) ?? 0) - (known ? byteRate(known) : 0) + byteRate({ link_bytes, tpot_ms });
  const link_share = bytes_per_s / (links.get(state.link) ?? Number.POSITIVE_INFINITY);
  const loads: readonly (readonly [number, Budget])[] = [
    [time_share / budgets.time_share_max, 'time'],
    [link_share / budgets.link_share_max, 'the link'],
  ];
  const [load, tightest] = loads.reduce((worst, next) => (next[0] > worst[0] ? next : worst));
  return { state, load, tightest };
}
