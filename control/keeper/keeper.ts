import { setTimeout as sleep } from 'node:timers/promises';
import { defaultKeepSettings, type KeepSettings } from '../../solver/keeping/keep.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { listGatewayFolders } from '../../spec/gateway-folders.ts';
import { slurmSettings } from '../../spec/site.ts';
import { isGatewayDesired, isGatewayNeeded, restartGateway } from '../gateway/gateway.ts';
import { layoutOf } from '../gateway/process.ts';
import { GranularityKeeper } from '../pipelines/granularity-keeper.ts';
import { Reconciler } from '../reconcile/reconciler.ts';
import { type Operations, type OperationsInput, openOperations } from '../runner/operations.ts';
import { Scaler } from '../scaler/scaler.ts';
import { type DeploymentState, isActive } from '../state/deployment-state.ts';
import { type FindLost, jobsOf, keepDeployment } from './keep-deployment.ts';
import { LostNodes } from './lost-nodes.ts';
import { PendingJobMigrator } from './pending-job-migrator.ts';
import { RepeatedTrouble } from './repeated-trouble.ts';
import { Replanner } from './replanner.ts';

export interface KeeperOptions {
  input: Omit<OperationsInput, 'emit' | 'overrides' | 'overrideSource'>;
  emit: (event: ProgressEvent) => void;
  /** Ends where nothing wants to be kept any more; otherwise it waits for the next deployment. */
  end_when_idle: boolean;
  /** The first gateway is somebody else's to start again. */
  leaves_first_gateway?: boolean;
}

/** Looks after one deployment as long as its Slurm settings stay the same. */
interface Kept {
  reconciler: Reconciler;
  settings_json: string;
}

/** Between two looks at the state files of deployments, where nobody asks the scheduler that often, ms. */
const tick_ms_max = 5_000;
/** Between two rounds at least. Lower: ends of local jobs are seen sooner; higher: less is computed meanwhile. */
const tick_ms_min = 500;
/**
 * Nothing has wanted to be kept for so long: the process ends, ms. Higher: fewer starts; lower: fewer idle processes.
 * One that never had anything to keep ends at once: `deploy` writes down what it wants before it starts a keeper.
 */
const idle_ms = 10_000;

/**
 * The keeper of a site: the one process that looks after all its deployments when no command does. Jobs that near
 * their time limit get successors, jobs that ended are replaced, models get replicas and pipelines stages by demand,
 * the gateway is started again where it is gone.
 */
export class Keeper {
  readonly #options: KeeperOptions;
  readonly #operations: Operations;
  readonly #scaler: Scaler;
  readonly #granularity: GranularityKeeper;
  readonly #migrator: PendingJobMigrator;
  readonly #replanner: Replanner;
  readonly #lostNodes: LostNodes;
  /** Whether it looks again and again: that a node is silent for a while is seen by nobody who looks once. */
  #watches = false;
  readonly #kept = new Map<string, Kept>();
  readonly #trouble: RepeatedTrouble;

  constructor(options: KeeperOptions) {
    this.#options = options;
    const operations = openOperations({ ...options.input, emit: options.emit });
    this.#trouble = new RepeatedTrouble(options.emit, operations.now_ms);
    this.#lostNodes = new LostNodes(operations);
    this.#operations = { ...operations, lost_nodes: () => this.#lostNodes.nodes };
    this.#scaler = new Scaler(this.#operations, options.emit);
    this.#granularity = new GranularityKeeper(this.#operations, options.emit);
    this.#migrator = new PendingJobMigrator(this.#operations, options.emit);
    this.#replanner = new Replanner(this.#operations, options.emit);
  }

  /** Keeps until the signal aborts, or nothing is left to keep. */
  async run(): Promise<void> {
    this.#watches = true;
    try {
      await this.#rounds();
    } finally {
      await this.#granularity.settled();
      await this.#lostNodes.close();
    }
  }

  async #rounds(): Promise<void> {
    const { signal, now_ms, runner } = this.#operations;
    let idle_since_ms: number | undefined = Number.NEGATIVE_INFINITY;
    while (!signal.aborted) {
      const { next_at_ms, any } = await this.round();
      if (any) idle_since_ms = undefined;
      else idle_since_ms ??= now_ms();
      if (this.#options.end_when_idle && idle_since_ms !== undefined && now_ms() - idle_since_ms >= idle_ms)
        return;
      const tick_ms = Math.min(tick_ms_max, Math.max(tick_ms_min, runner.poll_interval_ms));
      const wait_ms = Math.min(tick_ms, Math.max(50, next_at_ms - now_ms()));
      await sleep(wait_ms, undefined, { signal }).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
    }
  }

  /** Looks at every deployment once. What goes wrong with one is said, and holds up no other. */
  async round(): Promise<{ next_at_ms: number; any: boolean }> {
    const { states, unread } = await this.#readStates();
    const wanted = states.filter(({ desired }) => desired === 'serving');
    // A `stop` that was interrupted left jobs behind: this ends them.
    const attended = states.filter(isActive);
    for (const { name } of states.filter((state) => !isActive(state))) {
      this.#kept.delete(name);
      for (const about of [name, jobsOf(name)]) this.#trouble.over(about);
    }
    // What cannot be read may want to be kept: nothing is idle meanwhile.
    const any = attended.length > 0 || unread;
    await this.#guarded('demand', async () => this.#scaler.readDemand(wanted));
    let next_at_ms = Number.POSITIVE_INFINITY;
    for (const state of attended)
      await this.#guarded(state.name, async () => {
        next_at_ms = Math.min(next_at_ms, await this.#keep(state));
      });
    await this.#guarded('other sites', async () => this.#scaler.tellSites());
    await this.#guarded('the gateway', async () => {
      if (any) await this.#restartGateways();
    });
    return { next_at_ms, any };
  }

  /** @returns every deployment whose state can be read, and whether there is one whose state cannot */
  async #readStates(): Promise<{ states: DeploymentState[]; unread: boolean }> {
    const { store } = this.#operations;
    const states: DeploymentState[] = [];
    let names: string[] = [];
    let unread = !(await this.#guarded('the deployments', async () => {
      names = store.list();
    }));
    for (const name of names) {
      const isRead = await this.#guarded(`${name}, as written down`, async () => {
        const state = store.load(name);
        if (state) states.push(state);
      });
      unread ||= !isRead;
    }
    return { states, unread };
  }

  /** @returns when the next thing is due */
  async #keep(state: DeploymentState): Promise<number> {
    const { store, command, now_ms, signal } = this.#operations;
    const { emit } = this.#options;
    const reconciler = this.#reconcilerOf(state);
    const settings = this.#settingsOf(state);
    const replaceLost = this.#replanner.replaceLost.bind(this.#replanner);
    const findLost: FindLost | undefined = this.#watches
      ? this.#lostNodes.find.bind(this.#lostNodes)
      : undefined;
    const trouble = this.#trouble;
    const { next_at_ms, seen } = await keepDeployment(
      { store, reconciler, settings, command, now_ms, emit, trouble, signal, replaceLost, findLost },
      state.name,
    );
    if (!seen) return next_at_ms;
    if (this.#watches) await this.#granularity.look(seen.state, seen.observation);
    if (await this.#scaler.scale(seen.state, seen.observation, seen.spent)) await reconciler.pass(state.name);
    else if (!seen.spent && (await this.#replanner.look(seen.state, seen.observation)))
      await reconciler.pass(state.name);
    else if (await this.#migrator.move(seen.state, seen.observation)) {
      // What is submitted elsewhere, and then what waited until it was.
      await reconciler.pass(state.name);
      await reconciler.pass(state.name);
    }
    return next_at_ms;
  }

  /** `stop --gateway` means it: only what died, or whose job is over, is started again. */
  async #restartGateways(): Promise<void> {
    const { store, now_ms } = this.#operations;
    const { emit, leaves_first_gateway } = this.#options;
    if (!isGatewayNeeded(store)) return;
    for (const { number } of listGatewayFolders(store.layout.root)) {
      if (number === 1 && leaves_first_gateway) continue;
      if (!isGatewayDesired(layoutOf(store.layout, number))) continue;
      const started = await restartGateway(this.#operations, number);
      if (started && 'url' in started) emit({ at_ms: now_ms(), kind: 'gateway_up', url: started.url });
      else if (started)
        emit({
          at_ms: now_ms(),
          kind: 'warning',
          message: `the gateway is gone: its job ${started.job_id} takes its place`,
        });
    }
  }

  /** What goes wrong is said, and tried again in the next round. @returns whether nothing did */
  async #guarded(about: string, work: () => Promise<void>): Promise<boolean> {
    const { signal } = this.#operations;
    try {
      await work();
      this.#trouble.over(about);
      return true;
    } catch (thrown) {
      if (signal.aborted) return false;
      const { message, because, code } = HpcserveError.from(thrown);
      this.#trouble.happened(about, `${[message, ...because].join(': ')} [${code}]`);
      return false;
    }
  }

  #reconcilerOf(state: DeploymentState): Reconciler {
    const settings_json = JSON.stringify(state.spec.slurm);
    const known = this.#kept.get(state.name);
    if (known?.settings_json === settings_json) return known.reconciler;
    const { input, emit } = this.#options;
    const { loaded, store, runner, facts, now_ms, command, signal } = openOperations({
      ...input,
      emit,
      overrides: state.spec.slurm,
    });
    const reconciler = new Reconciler({
      site: loaded.site,
      store,
      runner,
      facts,
      now_ms,
      emit,
      command,
      signal,
    });
    this.#kept.set(state.name, { reconciler, settings_json });
    return reconciler;
  }

  #settingsOf({ spec, gpu_hours_forgotten }: DeploymentState): KeepSettings {
    const { site } = this.#operations.loaded;
    const { signal_s } = site.kind === 'slurm' ? slurmSettings(site) : { signal_s: 0 };
    return {
      ...defaultKeepSettings,
      signal_s,
      gpu_hours: spec.budget?.gpu_hours,
      gpu_hours_before: gpu_hours_forgotten,
    };
  }
}
