import { join } from 'node:path';
import { Delegation, launchScope } from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { launchFiles } from '../../spec/state-layout.ts';

/** Between two looks whether control has written it anew. Higher: less to read. */
const look_ms = 300_000;
/** The same where none counts: a shared filesystem may show a new file late. Lower: the job is sooner somebody's. */
const look_missing_ms = 5000;
/** It is said so long before the end that nothing will vouch for the sessions. */
const warn_ms = 12 * 3600_000;

export interface LaunchProviderOptions {
  launch: Pick<LaunchSpec, 'launch_id' | 'launch_folder'>;
  /** There is another delegation: sessions are to be published anew. */
  onRenewed: () => void;
  /** What is wrong with it; undefined when it is in order again. */
  onTrouble: (error: HpcserveError | undefined) => void;
}

/** What the agent's sessions prove their provider with: it lies in the launch folder, where control renews it. */
export class LaunchProvider {
  readonly #options: LaunchProviderOptions;
  #delegation: Delegation | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  private constructor(options: LaunchProviderOptions) {
    this.#options = options;
  }

  static async open(options: LaunchProviderOptions): Promise<LaunchProvider> {
    const provider = new LaunchProvider(options);
    await provider.look();
    provider.#lookLater();
    return provider;
  }

  get delegation(): Delegation | undefined {
    return this.#delegation;
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  #lookLater(): void {
    const counts = this.#delegation !== undefined && this.#delegation.ends_at_ms > Date.now();
    this.#timer = setTimeout(() => void this.#lookAgain(), counts ? look_ms : look_missing_ms);
    this.#timer.unref();
  }

  async #lookAgain(): Promise<void> {
    const renewed = await this.look();
    if (this.#closed) return;
    if (renewed) this.#options.onRenewed();
    this.#lookLater();
  }

  /** Reads the file; one that does not count changes nothing. @returns whether there is another delegation now */
  async look(): Promise<boolean> {
    const { launch, onTrouble } = this.#options;
    const path = join(launch.launch_folder, launchFiles.delegation);
    try {
      const found = await Delegation.read(path, launchScope(launch.launch_id));
      const current = this.#delegation;
      const isNew = found !== undefined && found.toText() !== current?.toText();
      if (isNew) this.#delegation = found;
      onTrouble(this.#trouble(path));
      return isNew;
    } catch (thrown) {
      onTrouble(HpcserveError.from(thrown));
      return false;
    }
  }

  #trouble(path: string): HpcserveError | undefined {
    const delegation = this.#delegation;
    const left_ms = delegation === undefined ? 0 : delegation.ends_at_ms - Date.now();
    if (left_ms > warn_ms) return undefined;
    const end = delegation && new Date(delegation.ends_at_ms).toISOString();
    return new HpcserveError('E_DELEGATION', {
      what:
        end === undefined
          ? 'nothing proves who provides this job'
          : `what proves who provides this job ${left_ms > 0 ? 'ends' : 'ended'} at ${end}`,
      because: end === undefined ? `there is no ${path}` : `nobody has renewed ${path}`,
    });
  }
}
