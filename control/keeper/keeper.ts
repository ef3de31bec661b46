/**
 * The keeper of a site: the one process that looks after all its deployments when no command does. Jobs that near
 * their time limit get successors, jobs that ended are replaced, models get replicas by demand, the gateway is started
 * again where it is gone.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { defaultKeepSettings, type KeepSettings } from '../../solver/keeping/keep.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { listGatewayFolders } from '../../spec/gateway-folders.ts';
import { slurmSettings } from '../../spec/site.ts';
import { isGatewayDesired, isGatewayNeeded, restartGateway } from '../gateway/gateway.ts';
import { layoutOf } from '../gateway/gateway-process.ts';
import { Reconciler } from '../reconcile/reconciler.ts';
import { type Operations, type OperationsInput, openOperations } from '../runner/operations.ts';
import { Scaler } from '../scaler/scaler.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { keepDeployment } from './keep-deployment.ts';
import { PendingJobMigrator } from './pending-job-migrator.ts';

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
/**
 * Nothing has wanted to be kept for so long: the process ends, ms. Higher: fewer starts; lower: fewer idle processes. One that
 * never had anything to keep ends at once: `deploy` writes down what it wants before it starts a keeper.
 */
const idle_ms = 10_000;

export class Keeper {
  readonly #options: KeeperOptions;
  readonly #operations: Operations;
  readonly #scaler: Scaler;
  readonly #migrator: PendingJobMigrator;
  readonly #kept = new Map<string, Kept>();
  readonly #said = new Map<string, string>();

  constructor(options: KeeperOptions) {
    this.#options = options;
    this.#operations = openOperations({ ...options.input, emit: options.emit });
    this.#scaler = new Scaler(this.#operations, options.emit);
    this.#migrator = new PendingJobMigrator(this.#operations, options.emit);
  }

  /** Keeps until the signal aborts, or nothing is left to keep. */
  async run(): Promise<void> {
    const { signal, now_ms, runner } = this.#operations;
    let idle_since_ms: number | undefined = Number.NEGATIVE_INFINITY;
    while (!signal.aborted) {
      const { next_at_ms, any } = await this.round();
      if (any) idle_since_ms = undefined;
      else idle_since_ms ??= now_ms();
      if (this.#options.end_when_idle && idle_since_ms !== undefined && now_ms() - idle_since_ms >= idle_ms)
        return;
      const wait_ms = Math.min(runner.poll_interval_ms, tick_ms_max, Math.max(50, next_at_ms - now_ms()));
      await sleep(wait_ms, undefined, { signal }).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
    }
  }

  /** Looks at every deployment once. What goes wrong with one is said, and holds up no other. */
  async round(): Promise<{ next_at_ms: number; any: boolean }> {
    const { store, now_ms } = this.#operations;
    let next_at_ms = Number.POSITIVE_INFINITY;
    let any = false;
    const states: { name: string; state: DeploymentState | undefined }[] = [];
    const isRead = async (about: string, read: () => void): Promise<void> => {
      // What cannot be read may want to be kept: nothing is idle meanwhile.
      any = !(await this.#guarded(about, async () => read())) || any;
    };
    let names: string[] = [];
    await isRead('the deployments', () => {
      names = store.list();
    });
    for (const name of names)
      await isRead(`${name}, as written down`, () => states.push({ name, state: store.load(name) }));
    await this.#guarded('demand', async () =>
      this.#scaler.look(states.flatMap(({ state }) => (state?.desired === 'serving' ? [state] : []))),
    );
    for (const { name, state } of states) {
      if (state?.desired !== 'serving') {
        this.#kept.delete(name);
        continue;
      }
      any = true;
      await this.#guarded(name, async () => {
        const reconciler = this.#reconcilerOf(state);
        const round = await keepDeployment(
          {
            store,
            reconciler,
            settings: this.#settingsOf(state),
            command: this.#operations.command,
            now_ms,
            emit: this.#options.emit,
            signal: this.#operations.signal,
          },
          name,
        );
        next_at_ms = Math.min(next_at_ms, round.next_at_ms);
        if (!round.seen) return;
        const { state: kept, observation, spent } = round.seen;
        if (await this.#scaler.scale(kept, observation, spent)) await reconciler.pass(name);
        else if (await this.#migrator.move(kept, observation)) {
          // What is submitted elsewhere, and then what waited until it was.
          await reconciler.pass(name);
          await reconciler.pass(name);
        }
      });
    }
    await this.#guarded('the gateway', async () => {
      // `stop --gateway` means it: only what died, or whose job is over, is started again.
      if (!any || !isGatewayNeeded(store)) return;
      for (const { number } of listGatewayFolders(store.layout.root)) {
        if (number === 1 && this.#options.leaves_first_gateway) continue;
        if (!isGatewayDesired(layoutOf(store.layout, number))) continue;
        const started = await restartGateway(this.#operations, number);
        if (started && 'url' in started)
          this.#options.emit({ at_ms: now_ms(), kind: 'gateway_up', url: started.url });
        else if (started)
          this.#options.emit({
            at_ms: now_ms(),
            kind: 'warning',
            message: `the gateway is gone: its job ${started.job_id} takes its place`,
          });
      }
    });
    return { next_at_ms, any };
  }

  /**
   * The same trouble is told once, until it is over.
   * @returns whether there was none
   */
  async #guarded(about: string, work: () => Promise<void>): Promise<boolean> {
    const { now_ms, signal } = this.#operations;
    try {
      await work();
      this.#said.delete(about);
      return true;
    } catch (thrown) {
      if (signal.aborted) return false;
      const error = HpcserveError.from(thrown);
      const reason = [error.message, ...error.because].join(': ');
      if (this.#said.get(about) !== reason)
        this.#options.emit({
          at_ms: now_ms(),
          kind: 'warning',
          message: `${about}: ${reason} [${error.code}]`,
        });
      this.#said.set(about, reason);
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

  #settingsOf({ spec }: DeploymentState): KeepSettings {
    const { site } = this.#operations.loaded;
    const { signal_s } = site.kind === 'slurm' ? slurmSettings(site) : { signal_s: 0 };
    return { ...defaultKeepSettings, signal_s, gpu_hours: spec.budget?.gpu_hours };
  }
}
