/**
 * Stages of several models on shared devices (FlexPipe §6.2, Eq. 6 to 9): x_ij says that stage i is on device j, and
 *
 *   max  Σ_i Σ_j x_ij [ T_ij / m_i − γ(CV_i) · 1(device j is shared) ]         (6), γ = γ0 (1 + α CV²)   (9)
 *   s.t. Σ_i x_ij m_i ≤ M_j                                                    (7)
 *        | T_ij / T_i'j' − 1 | ≤ ε  for stages i, i' of one pipeline           (8)
 *        no two stages of one model on one device
 *
 * T / m is in shares of its largest value, so that γ0 is one, too: 0.2 is a fifth of the best stage's worth. The
 * search is depth first with a bound, the stage with the most memory first, and ends as the optimum or at its limit
 * of nodes.
 */
export interface PlacedStage {
  id: string;
  model: string;
  memory_bytes: number;
  /** CV of the model's arrivals. */
  cv: number;
  /** T_ij, by the order of the devices; 0: the device cannot run it. */
  rates_per_s: readonly number[];
}

export interface MultiplexedDevice {
  id: string;
  /** Free for stages. */
  memory_bytes: number;
  /** Models that have something on it already: a further one shares it, and the same one is kept away. */
  models?: readonly string[];
}

export interface MultiplexingSettings {
  /** γ0. Higher: stages share devices less. */
  penalty: number;
  /** α of Eq. 9. Higher: bursty models are kept apart more. */
  cv_sensitivity: number;
  /** ε of Eq. 8. Lower: pipelines without a slow stage; higher: more places that are allowed. */
  imbalance_max: number;
  /** Nodes of the search. Higher: better answers of large questions, later. */
  nodes_max: number;
}

export const multiplexing_settings: MultiplexingSettings = {
  penalty: 0.2,
  cv_sensitivity: 0.25,
  imbalance_max: 0.5,
  nodes_max: 200_000,
};

export interface StagePlacement {
  feasible: true;
  /** Device of each stage, in the order of the question. */
  devices: readonly string[];
  /** Of Eq. 6. */
  value: number;
  /** No better placement exists; otherwise the search ended at its limit. */
  optimal: boolean;
}

export interface NoPlacement {
  feasible: false;
  because: string;
}

/** γ of Eq. 9. */
export function multiplexingPenalty(cv: number, settings: MultiplexingSettings): number {
  return settings.penalty * (1 + settings.cv_sensitivity * cv ** 2);
}

export function placeStages(
  stages: readonly PlacedStage[],
  devices: readonly MultiplexedDevice[],
  settings: MultiplexingSettings = multiplexing_settings,
): StagePlacement | NoPlacement {
  for (const [index, { id, memory_bytes, rates_per_s }] of stages.entries())
    if (!devices.some((device, at) => device.memory_bytes >= memory_bytes && rates_per_s[at]! > 0))
      return { feasible: false, because: `stage ${id} (${index + 1} of ${stages.length}) fits on no device` };
  return new PlacementSearch(stages, devices, settings).run();
}

/** What stands on a device during the search. */
interface DeviceState {
  free_bytes: number;
  /** Models on it, and the penalties of stages that were placed here. */
  models: Set<string>;
  /** Models that were there before. */
  foreign: number;
  stages: number;
  penalties: number;
}

/** Branch and bound over stages in order of memory. */
class PlacementSearch {
  readonly #stages: readonly PlacedStage[];
  readonly #order: readonly number[];
  readonly #devices: readonly MultiplexedDevice[];
  readonly #settings: MultiplexingSettings;
  readonly #states: DeviceState[];
  /** T_ij / m_i over its largest value. */
  readonly #worth: number[][];
  readonly #penalty: readonly number[];
  /** The best worth of the stages from this place of the order on. */
  readonly #ahead: Float64Array;
  readonly #rates = new Map<string, number[]>();
  readonly #at: number[];
  #best: { value: number; at: number[] } | undefined;
  #nodes = 0;

  constructor(
    stages: readonly PlacedStage[],
    devices: readonly MultiplexedDevice[],
    settings: MultiplexingSettings,
  ) {
    this.#stages = stages;
    this.#devices = devices;
    this.#settings = settings;
    this.#order = [...stages.keys()].sort(
      (a, b) => stages[b]!.memory_bytes - stages[a]!.memory_bytes || a - b,
    );
    this.#states = devices.map(({ memory_bytes, models = [] }) => ({
      free_bytes: memory_bytes,
      models: new Set(models),
      foreign: models.length,
      stages: 0,
      penalties: 0,
    }));
    const raw = stages.map(({ rates_per_s, memory_bytes }) => rates_per_s.map((rate) => rate / memory_bytes));
    const largest = Math.max(...raw.flat());
    this.#worth = raw.map((row) => row.map((worth) => worth / largest));
    this.#penalty = stages.map(({ cv }) => multiplexingPenalty(cv, settings));
    this.#ahead = new Float64Array(stages.length + 1);
    for (let place = stages.length - 1; place >= 0; place--)
      this.#ahead[place] = this.#ahead[place + 1]! + Math.max(...this.#worth[this.#order[place]!]!);
    this.#at = stages.map(() => -1);
  }

  run(): StagePlacement | NoPlacement {
    this.#visit(0, 0);
    const ended = this.#nodes < this.#settings.nodes_max;
    if (this.#best === undefined)
      return {
        feasible: false,
        because: ended
          ? `no placement keeps every stage in memory, stages of one model apart, and their rates within ${this.#settings.imbalance_max} of each other`
          : `none was found in ${this.#settings.nodes_max} steps`,
      };
    const { value, at } = this.#best;
    return { feasible: true, devices: at.map((device) => this.#devices[device]!.id), value, optimal: ended };
  }

  #visit(place: number, value: number): void {
    if (this.#nodes >= this.#settings.nodes_max) return;
    this.#nodes++;
    if (place === this.#order.length) {
      if (this.#best === undefined || value > this.#best.value) this.#best = { value, at: [...this.#at] };
      return;
    }
    if (this.#best !== undefined && value + this.#ahead[place]! <= this.#best.value + 1e-12) return;
    const stage = this.#order[place]!;
    for (const { device, gain } of this.#choices(stage)) {
      this.#put(stage, device);
      this.#visit(place + 1, value + gain);
      this.#take(stage, device);
    }
  }

  /** Devices that may take the stage, the largest gain first; of empty ones that are alike, one. */
  #choices(stage: number): { device: number; gain: number }[] {
    const { model, memory_bytes, rates_per_s } = this.#stages[stage]!;
    const seen = new Set<string>();
    const choices: { device: number; gain: number }[] = [];
    for (const [device, state] of this.#states.entries()) {
      const rate = rates_per_s[device]!;
      if (rate <= 0 || state.free_bytes < memory_bytes || state.models.has(model)) continue;
      if (!this.#isBalanced(model, rate)) continue;
      if (state.stages === 0 && state.foreign === 0) {
        const alike = `${state.free_bytes} ${this.#stages.map((own) => own.rates_per_s[device]).join(' ')}`;
        if (seen.has(alike)) continue;
        seen.add(alike);
      }
      choices.push({ device, gain: this.#gain(stage, device, state) });
    }
    return choices.sort((a, b) => b.gain - a.gain || a.device - b.device);
  }

  /** Worth of the stage there, less its own penalty and those of stages that had the device to themselves. */
  #gain(stage: number, device: number, { foreign, stages, penalties }: DeviceState): number {
    const shared = foreign + stages > 0;
    const others = foreign === 0 && stages === 1 ? penalties : 0;
    return this.#worth[stage]![device]! - (shared ? this.#penalty[stage]! + others : 0);
  }

  #isBalanced(model: string, rate: number): boolean {
    const limit = 1 + this.#settings.imbalance_max + 1e-12;
    return (this.#rates.get(model) ?? []).every(
      (other) => Math.max(rate, other) / Math.min(rate, other) <= limit,
    );
  }

  #put(stage: number, device: number): void {
    const { model, memory_bytes, rates_per_s } = this.#stages[stage]!;
    const state = this.#states[device]!;
    state.free_bytes -= memory_bytes;
    state.models.add(model);
    state.stages++;
    state.penalties += this.#penalty[stage]!;
    this.#at[stage] = device;
    const rates = this.#rates.get(model) ?? [];
    rates.push(rates_per_s[device]!);
    this.#rates.set(model, rates);
  }

  #take(stage: number, device: number): void {
    const { model, memory_bytes } = this.#stages[stage]!;
    const state = this.#states[device]!;
    state.free_bytes += memory_bytes;
    state.models.delete(model);
    state.stages--;
    state.penalties -= this.#penalty[stage]!;
    this.#at[stage] = -1;
    this.#rates.get(model)!.pop();
  }
}
