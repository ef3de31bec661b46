import { type EvictionWeight, evictionCost } from '../../solver/reuse/eviction.ts';
import { defaultPlanningSettings, type LoadPlan, planLoad } from '../../solver/reuse/load-plan.ts';
import { planReclaim, reclaimableRanges } from '../../solver/reuse/reclaim.ts';
import type { RegionView } from '../../solver/reuse/region-view.ts';
import {
  noRequests,
  noteRequest,
  type RequestHistory,
  requestProbability,
} from '../../solver/reuse/request-probability.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LoadOutcome, PendingLoad, TensorLease, WantedModel, WantedTensor } from './pending-load.ts';
import type { OffsetRange, Region, RegionList } from './region-list.ts';

/** Who a region of the pool belongs to: a tensor, or a part of the pool that the store does not manage. */
export type PoolOwner = StoredTensor | ReservedRegion;

export interface ReservedRegion {
  readonly kind: 'reserved';
  /**
   * `arena`: weights are streamed through it. `lost`: a load that hangs may still write to it. `gap`: between two
   * buffers, nobody's.
   */
  readonly use: 'kv' | 'scratch' | 'arena' | 'lost' | 'gap';
  readonly model: string;
  /** Of KV: its cache has it for as long as it is there, so that nobody who waits gets it. */
  readonly fixed?: true;
}

interface StoredTensor {
  readonly kind: 'tensor';
  keys: string[];
  region: Region<PoolOwner>;
  state: 'loading' | 'ready';
  /** Leases that hold it; it neither moves nor goes while there is one. */
  users: number;
  /** Models that have used it. */
  readonly models: Set<string>;
}

export interface StoreStats {
  pool_bytes: number;
  /** Tensors that instances use. */
  active_bytes: number;
  /** Tensors that no instance uses now. */
  reusable_bytes: number;
  kv_bytes: number;
  /** Intermediate results of engines. */
  scratch_bytes: number;
  /** Of weights that are streamed. */
  arena_bytes: number;
  /** Of loads that hang. */
  lost_bytes: number;
  /** Between buffers. */
  gap_bytes: number;
  free_bytes: number;
  largest_free_bytes: number;
  /** Share of the free bytes outside the largest free region. */
  fragmentation: number;
  regions: number;
}

/** Bytes per second before any were measured; only their proportion matters, and only until the first load. */
export const assumed_bandwidths: StoreBandwidths = { load: 2e9, copy: 10e9 };
/** Weight of the newest measurement in a bandwidth. */
const smoothing = 0.3;
/** Loads and moves of fewer bytes say more of their overhead than of a bandwidth. */
const measurable_bytes = 16 * 1024 * 1024;

/** Bytes per second. */
export interface StoreBandwidths {
  /** Of bringing missing tensors into the pool. */
  load: number;
  /** Of moving a tensor within the pool. */
  copy: number;
}

/**
 * The Reuse Store of one device (Tangram §3.1): which tensors lie where in its pool. A tensor outlives the
 * instance that loaded it and is found again by its fingerprint; models that have tensors in common have the same
 * regions. Nothing is found before its load is committed, so that a load that ended half-way leaves nothing behind.
 */
export class ReuseStore {
  readonly #regions: RegionList<PoolOwner>;
  readonly #move: (to_offset: number, from_offset: number, bytes: number) => void;
  readonly #relieve: (bytes: number) => boolean;
  readonly #byKey = new Map<string, StoredTensor>();
  readonly #leases = new Set<{ model: string; held: readonly StoredTensor[] }>();
  readonly #models = new Map<string, { latency_sensitivity: number; load_bandwidth: number }>();
  #history: RequestHistory = noRequests;
  #changes = 0;
  readonly #loadBandwidth: number;
  #copyBandwidth: number;

  /**
   * @param regions of the whole pool; what others have reserved there is respected
   * @param move carries bytes to another place of the pool
   * @param bandwidths to begin with; both are measured from then on
   * @param relieve asks those who have reserved parts to give up what they only keep for later: whether any did
   */
  constructor(
    regions: RegionList<PoolOwner>,
    move: (to_offset: number, from_offset: number, bytes: number) => void,
    bandwidths: StoreBandwidths = assumed_bandwidths,
    relieve: (bytes: number) => boolean = () => false,
  ) {
    this.#regions = regions;
    this.#move = move;
    this.#loadBandwidth = bandwidths.load;
    this.#copyBandwidth = bandwidths.copy;
    this.#relieve = relieve;
  }

  /** S′ of Equation 3: bytes of these tensors that are in the pool. */
  residentWeights_bytes(tensors: readonly WantedTensor[]): number {
    const found = new Set<StoredTensor>();
    for (const { keys } of tensors) {
      const stored = this.#find(keys);
      if (stored) found.add(stored);
    }
    let bytes = 0;
    for (const { region } of found) bytes += region.bytes;
    return bytes;
  }

  /**
   * Notes a request for the model, keeps what is there of it, and makes room for the rest: by evicting and moving
   * tensors that nobody uses.
   * @throws HpcserveError E_POOL_FULL; then the pool is as it was
   */
  begin(wanted: WantedModel): PendingLoad {
    this.#history = noteRequest(this.#history, wanted.model);
    this.#models.set(wanted.model, {
      latency_sensitivity: wanted.latency_sensitivity,
      load_bandwidth: this.loadBandwidth(wanted.model),
    });
    const request = this.#lookUp(wanted);
    for (const stored of request.found) stored.users++;
    try {
      return this.#makeRoom(wanted, request);
    } catch (error) {
      for (const stored of request.found) stored.users--;
      throw error;
    }
  }

  /** Whether a tensor is in the pool. */
  has({ keys }: WantedTensor): boolean {
    return this.#find(keys) !== undefined;
  }

  /** Where it lies now: a tensor that no instance uses may move, or go, with the next load. */
  offsetOf({ keys }: WantedTensor): number | undefined {
    return this.#find(keys)?.region.offset;
  }

  /** p of Equation 2: that the next request is for the model. */
  probability(model: string): number {
    return requestProbability(this.#history, model);
  }

  /** Makes what is stored under one key findable under another: its content became known. */
  alias(known: string, key: string): void {
    const stored = this.#byKey.get(known);
    if (!stored || this.#byKey.has(key)) return;
    stored.keys.push(key);
    this.#byKey.set(key, stored);
  }

  /** Of the tensors that instances of the model use; those that models share count for each. */
  usedWeights_bytes(model: string): number {
    const used = new Set([...this.#leases].flatMap((lease) => (lease.model === model ? lease.held : [])));
    return [...used].reduce((sum, { region }) => sum + region.bytes, 0);
  }

  /** Counts what changes `bytesByModel`: whoever has seen it at this count need not look again. */
  get changes(): number {
    return this.#changes;
  }

  /** B of Equation 3, bytes per second: as measured of the model's loads, else what is assumed of all. */
  loadBandwidth(model: string): number {
    return this.#models.get(model)?.load_bandwidth ?? this.#loadBandwidth;
  }

  /** S′ of every model that was here: bytes of its tensors that lie in the pool, whoever uses them now. */
  bytesByModel(): Map<string, number> {
    const found = new Map<string, number>();
    for (const { owner, bytes } of this.#regions) {
      if (owner?.kind !== 'tensor' || owner.state !== 'ready') continue;
      for (const model of owner.models) found.set(model, (found.get(model) ?? 0) + bytes);
    }
    return found;
  }

  /**
   * Makes a free range by giving up tensors that nobody uses, those of the least cost; nothing is moved.
   * @param within where the range is to lie; absent: anywhere
   * @returns its offset; undefined where what is in use leaves none, and nothing was given up
   */
  reclaim(bytes: number, alignment: number, within?: OffsetRange): number | undefined {
    const regions = [...this.#regions];
    const plan = planReclaim(this.#viewWithin(regions, within), this.#regions.aligned(bytes), alignment);
    if (!plan) return undefined;
    for (const { owner } of plan.evict.map((index) => regions[index]!))
      if (owner?.kind === 'tensor') this.#evict(owner);
    return plan.offset;
  }

  /** Ranges that `reclaim` could make, were regions of which `spare` says so free, too. */
  reclaimable(
    bytes: number,
    alignment: number,
    spare: (owner: ReservedRegion) => boolean,
    within?: OffsetRange,
  ): number {
    const regions = [...this.#regions];
    const view = this.#viewWithin(regions, within).map((region, index): RegionView => {
      const { owner } = regions[index]!;
      if (!isWithin(regions[index]!, within)) return region;
      return owner?.kind === 'reserved' && spare(owner) ? { kind: 'free', bytes: region.bytes } : region;
    });
    return reclaimableRanges(view, bytes, alignment);
  }

  /** Gives up every tensor that nobody uses. */
  clear(): void {
    for (const { owner } of [...this.#regions])
      if (owner?.kind === 'tensor' && owner.state === 'ready' && owner.users === 0) this.#evict(owner);
  }

  stats(): StoreStats {
    const stats = {
      active_bytes: 0,
      reusable_bytes: 0,
      kv_bytes: 0,
      scratch_bytes: 0,
      arena_bytes: 0,
      lost_bytes: 0,
      gap_bytes: 0,
    };
    for (const { owner, bytes } of this.#regions) {
      if (owner?.kind === 'reserved') stats[`${owner.use}_bytes`] += bytes;
      else if (owner)
        stats[owner.users > 0 || owner.state === 'loading' ? 'active_bytes' : 'reusable_bytes'] += bytes;
    }
    const { bytes, free_bytes, largest_free_bytes, fragmentation, count } = this.#regions;
    return { pool_bytes: bytes, ...stats, free_bytes, largest_free_bytes, fragmentation, regions: count };
  }

  /**
   * Compares regions, keys and leases with one another.
   * @throws HpcserveError E_POOL_INTEGRITY
   */
  verify(): void {
    this.#regions.verify();
    const users = new Map<StoredTensor, number>();
    for (const { held } of this.#leases)
      for (const stored of held) users.set(stored, (users.get(stored) ?? 0) + 1);
    const seen = new Set<StoredTensor>();
    for (const region of this.#regions) {
      const { owner } = region;
      if (owner?.kind !== 'tensor') continue;
      const at = `the tensor at ${region.offset}`;
      if (owner.region !== region) throw damaged(`${at} says it lies at ${owner.region.offset}`);
      if (owner.state === 'loading') continue;
      if (owner.users !== (users.get(owner) ?? 0))
        throw damaged(`${at} counts ${owner.users} users and has ${users.get(owner) ?? 0}`);
      if (owner.keys.length === 0 && owner.users === 0) throw damaged(`${at} can never be found again`);
      if (owner.keys.some((key) => this.#byKey.get(key) !== owner))
        throw damaged(`${at} is not found by its keys`);
      seen.add(owner);
    }
    for (const stored of [...this.#byKey.values(), ...users.keys()])
      if (!seen.has(stored)) throw damaged(`a tensor at ${stored.region.offset} is known and has no region`);
  }

  #find(keys: readonly string[]): StoredTensor | undefined {
    for (const key of keys) {
      const stored = this.#byKey.get(key);
      if (stored) return stored;
    }
    return undefined;
  }

  #lookUp({ tensors }: WantedModel): Request {
    const found = new Set<StoredTensor>();
    const missing: number[] = [];
    // A model may want the same tensor twice; it is loaded once.
    const sameAs = new Map<string, number>();
    const slots = tensors.map(({ keys }, index): StoredTensor | number => {
      const stored = this.#find(keys);
      if (stored) {
        found.add(stored);
        return stored;
      }
      const first = keys.map((key) => sameAs.get(key)).find((known) => known !== undefined);
      if (first !== undefined) return first;
      for (const key of keys) sameAs.set(key, missing.length);
      missing.push(index);
      return missing.length - 1;
    });
    return { found: [...found], missing, slots };
  }

  #makeRoom(wanted: WantedModel, { found, missing, slots }: Request): PendingLoad {
    const started = performance.now();
    const sizes = missing.map((index) => this.#regions.aligned(wanted.tensors[index]!.bytes));
    const regions = [...this.#regions];
    const plan = planLoad(this.#view(regions), sizes, defaultPlanningSettings);
    if (!plan) {
      // As much of what others only keep for later, again where that was scattered, until they keep nothing.
      if (!this.#relieve(sizes.reduce((sum, bytes) => sum + bytes, 0))) throw this.#full(wanted.model, sizes);
      return this.#makeRoom(wanted, { found, missing, slots });
    }
    const planned = performance.now();
    const evicted_bytes = plan.evict.reduce((sum, index) => sum + regions[index]!.bytes, 0);
    const moved_bytes = this.#carryOut(plan, regions);
    const outcome: LoadOutcome = {
      reused_bytes: found.reduce((sum, { region }) => sum + region.bytes, 0),
      missing_bytes: sizes.reduce((sum, bytes) => sum + bytes, 0),
      evicted_bytes,
      moved_bytes,
      plan_ms: planned - started,
      move_ms: performance.now() - planned,
    };
    this.#measureCopy(moved_bytes, outcome.move_ms);
    const loading = missing.map((index, at) =>
      this.#place(plan.offsets[at]!, wanted.model, wanted.tensors[index]!),
    );
    const tensors = slots.map((slot) => (typeof slot === 'number' ? loading[slot]! : slot));
    return this.#pending(wanted, { found, missing, loading, tensors, outcome });
  }

  #pending(wanted: WantedModel, load: Load): PendingLoad {
    const { found, missing, loading, tensors, outcome } = load;
    let open = true;
    const close = (): void => {
      if (!open) throw new Error(`the load of ${wanted.model} has ended already`);
      open = false;
    };
    const giveUp = (end: (stored: StoredTensor) => void): void => {
      close();
      for (const stored of found) stored.users--;
      for (const stored of loading) end(stored);
    };
    return {
      offsets: tensors.map(({ region }) => region.offset),
      missing,
      outcome,
      commit: (elapsed_ms) => {
        close();
        this.#measureLoad(wanted.model, outcome.missing_bytes, elapsed_ms);
        for (const stored of loading) this.#publish(stored);
        for (const stored of found) this.#learn(stored, wanted, tensors);
        return this.#lease(wanted.model, tensors);
      },
      abort: () => giveUp((stored) => this.#regions.free(stored.region)),
      abandon: () => {
        const lost: Region<PoolOwner>[] = [];
        giveUp((stored) => void lost.push(this.#quarantine(stored)));
        return () => {
          for (const region of lost.splice(0)) this.#regions.free(region);
        };
      },
    };
  }

  #lease(model: string, tensors: readonly StoredTensor[]): TensorLease {
    const held = [...new Set(tensors)];
    const lease = { model, held };
    this.#leases.add(lease);
    this.#changes++;
    for (const stored of held) stored.models.add(model);
    const offsets = tensors.map(({ region }) => region.offset);
    return {
      offsets,
      release: () => {
        if (!this.#leases.delete(lease)) throw new Error(`the tensors of ${model} were released already`);
        for (const stored of held) {
          stored.users--;
          // Another load brought the same tensor first: this one is found by nobody.
          if (stored.users === 0 && stored.keys.length === 0) this.#regions.free(stored.region);
        }
        this.#changes++;
      },
    };
  }

  #place(offset: number, model: string, { keys, bytes }: WantedTensor): StoredTensor {
    const stored = {
      kind: 'tensor' as const,
      keys: [...keys],
      state: 'loading' as const,
      users: 1,
      models: new Set([model]),
    };
    const owner = stored as unknown as StoredTensor;
    owner.region = this.#regions.allocateAt(offset, bytes, owner);
    return owner;
  }

  #publish(stored: StoredTensor): void {
    stored.state = 'ready';
    stored.keys = stored.keys.filter((key) => !this.#byKey.has(key));
    for (const key of stored.keys) this.#byKey.set(key, stored);
  }

  /** What was found by one key is findable by the others from now on. */
  #learn(stored: StoredTensor, { tensors: wanted }: WantedModel, tensors: readonly StoredTensor[]): void {
    tensors.forEach((candidate, index) => {
      if (candidate !== stored || stored.keys.length === 0) return;
      for (const key of wanted[index]!.keys) this.alias(stored.keys[0]!, key);
    });
  }

  #quarantine(stored: StoredTensor): Region<PoolOwner> {
    const { offset, bytes } = stored.region;
    this.#regions.free(stored.region);
    const [model = ''] = stored.models;
    return this.#regions.allocateAt(offset, bytes, { kind: 'reserved', use: 'lost', model });
  }

  #evict(stored: StoredTensor): void {
    this.#changes++;
    for (const key of stored.keys) this.#byKey.delete(key);
    this.#regions.free(stored.region);
  }

  /** @returns bytes moved */
  #carryOut({ evict, moves }: LoadPlan, regions: readonly Region<PoolOwner>[]): number {
    const tensorOf = (index: number): StoredTensor => {
      const owner = regions[index]!.owner;
      if (owner?.kind !== 'tensor') throw new Error(`region ${index} of a plan is no tensor`);
      return owner;
    };
    const moving = moves.map(({ region, to_offset }) => ({ stored: tensorOf(region), to_offset }));
    for (const stored of evict.map(tensorOf)) this.#evict(stored);
    let bytes = 0;
    for (const { stored, to_offset } of moving) {
      const { offset: from, bytes: size } = stored.region;
      stored.region = this.#regions.move(stored.region, to_offset);
      this.#move(to_offset, from, size);
      bytes += size;
    }
    return bytes;
  }

  /** As `#view`, but what lies elsewhere stays as it is. */
  #viewWithin(regions: readonly Region<PoolOwner>[], within: OffsetRange | undefined): RegionView[] {
    const view = this.#view(regions);
    if (!within) return view;
    return view.map((region, index) =>
      isWithin(regions[index]!, within) ? region : { kind: 'fixed', bytes: region.bytes },
    );
  }

  #view(regions: readonly Region<PoolOwner>[]): RegionView[] {
    const weights = new Map<string, EvictionWeight>();
    for (const [model, { latency_sensitivity, load_bandwidth }] of this.#models)
      weights.set(model, {
        probability: requestProbability(this.#history, model),
        latency_sensitivity,
        load_bandwidth,
      });
    return regions.map(({ owner, bytes }): RegionView => {
      if (owner === undefined) return { kind: 'free', bytes };
      if (owner.kind === 'reserved' || owner.users > 0 || owner.state === 'loading')
        return { kind: 'fixed', bytes };
      const models = [...owner.models].map((model) => weights.get(model)!);
      return {
        kind: 'resident',
        bytes,
        evict_cost_s: evictionCost(bytes, models),
        move_cost_s: bytes / this.#copyBandwidth,
      };
    });
  }

  #measureLoad(model: string, bytes: number, elapsed_ms: number): void {
    const known = this.#models.get(model);
    if (known && bytes >= measurable_bytes && elapsed_ms > 0)
      known.load_bandwidth += smoothing * ((bytes * 1000) / elapsed_ms - known.load_bandwidth);
  }

  #measureCopy(bytes: number, elapsed_ms: number): void {
    if (bytes >= measurable_bytes && elapsed_ms > 0)
      this.#copyBandwidth += smoothing * ((bytes * 1000) / elapsed_ms - this.#copyBandwidth);
  }

  #full(model: string, sizes: readonly number[]): HpcserveError {
    const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
    const { pool_bytes, active_bytes, kv_bytes, scratch_bytes, free_bytes, reusable_bytes } = this.stats();
    const missing = sizes.reduce((sum, bytes) => sum + bytes, 0);
    const usable = free_bytes + reusable_bytes;
    const because = [
      `${gib(missing)} of its weights are missing, and ${gib(usable)} are free or reusable`,
      `of ${gib(pool_bytes)}, ${gib(active_bytes)} hold weights in use and ${gib(kv_bytes + scratch_bytes)} the KV caches and results of running models`,
    ];
    if (usable >= missing)
      because.push('what is usable lies in pieces between what is in use, and tensors are whole');
    return new HpcserveError('E_POOL_FULL', {
      what: `the model ${model} does not fit into the memory pool`,
      because,
      details: { missing_bytes: missing, pool_bytes, active_bytes, kv_bytes, scratch_bytes },
    });
  }
}

/** No region lies partly in a range: ranges end at gaps. */
function isWithin({ offset }: Region<PoolOwner>, within: OffsetRange | undefined): boolean {
  return !within || (offset >= within.begin && offset < within.end);
}

interface Request {
  /** In the pool, each once. */
  found: StoredTensor[];
  /** Indices of the wanted tensors to be loaded, each once. */
  missing: number[];
  /** Per wanted tensor: where it is, or which of the missing ones it is. */
  slots: (StoredTensor | number)[];
}

interface Load {
  found: StoredTensor[];
  missing: number[];
  loading: StoredTensor[];
  tensors: StoredTensor[];
  outcome: LoadOutcome;
}

function damaged(because: string): HpcserveError {
  return new HpcserveError('E_POOL_INTEGRITY', { what: 'the reuse store contradicts itself', because });
}
