import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { Delegation, launchScope, ProviderKey } from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { launchFiles, providerKeyFile, type StateLayout } from '../../spec/state-layout.ts';
import { providerName } from './provider-name.ts';

const day_s = 86_400;
/**
 * How long a job may wait in the queue while nobody looks after its launch. Lower: less time in which a stolen launch
 * folder is of use; higher: `keeper: none` and long queues go together.
 */
const queue_s = 30 * day_s;
/** Clocks of nodes and gateways may be wrong by so much, and jobs may end so late. */
const grace_s = day_s;
/** Of what has no time limit (the local site, nodes that joined): it ends a year after anybody last looked. */
const unlimited_s = 365 * day_s;

/** Who a user is to others of the mesh; the key is made where there is none. @throws HpcserveError E_PROVIDER_KEY */
export function ownProvider(
  layout: StateLayout,
  site: Pick<SiteConfig, 'name' | 'provider'>,
  user: string,
): { name: string; fingerprint: string; key_file: string } {
  const key_file = providerKeyFile(layout, process.getuid!());
  return { name: providerName(site, user), fingerprint: ProviderKey.loadOrCreate(key_file).id, key_file };
}

/**
 * Until when a launch that is submitted or renewed now may prove its provider, Unix s: a wait in the queue, the whole
 * time limit, and the grace. Every renewal counts anew, so that a job which is requeued has its time, too.
 */
export function delegationEnd_s(now_ms: number, time_limit_s: number | undefined): number {
  const life_s = time_limit_s === undefined ? unlimited_s : queue_s + time_limit_s + grace_s;
  return Math.floor(now_ms / 1000) + life_s;
}

/** Renewed when half of what it may wait is over: whatever starts then still has its whole time limit and grace. */
export function isRenewalDue(ends_at_ms: number, now_ms: number, time_limit_s: number | undefined): boolean {
  const spare_s = (time_limit_s === undefined ? unlimited_s : queue_s) / 2;
  return ends_at_ms / 1000 < delegationEnd_s(now_ms, time_limit_s) - spare_s;
}

export interface DelegatedLaunch {
  launch_id: string;
  launch_folder: string;
  time_limit_s?: number | undefined;
}

/**
 * What the jobs of a user prove their provider with: written into the launch folder before a job is submitted, and
 * renewed for as long as control looks after the launch.
 */
export class Delegations {
  readonly #layout: StateLayout;
  readonly #name: string;
  /** When the delegation of each launch ends, Unix ms: what was seen once is not read again before it is due. */
  readonly #ends_at_ms = new Map<string, number>();

  /** @param user who runs the jobs, and this process */
  constructor(layout: StateLayout, site: Pick<SiteConfig, 'name' | 'provider'>, user: string) {
    this.#layout = layout;
    this.#name = providerName(site, user);
  }

  /**
   * Writes that of a launch whose folder is there, with a new key. @throws HpcserveError E_PROVIDER_KEY, or the
   * system's error
   */
  write(launch: DelegatedLaunch, now_ms: number): void {
    this.#write(launch, now_ms, undefined);
  }

  /**
   * Renews what is due, and writes what is missing: jobs that were submitted by a version before providers had keys.
   *
   * @throws HpcserveError E_PROVIDER_KEY, or the system's error
   */
  async renew(launches: readonly DelegatedLaunch[], now_ms: number): Promise<void> {
    for (const launch of launches) {
      const { launch_id, time_limit_s } = launch;
      const known_ms = this.#ends_at_ms.get(launch_id);
      if (known_ms !== undefined && !isRenewalDue(known_ms, now_ms, time_limit_s)) continue;
      const current = await this.#read(launch);
      if (current && !isRenewalDue(current.ends_at_ms, now_ms, time_limit_s))
        this.#ends_at_ms.set(launch_id, current.ends_at_ms);
      else this.#write(launch, now_ms, current);
    }
  }

  /** Takes that of a launch away whose jobs have ended. */
  remove({ launch_id, launch_folder }: DelegatedLaunch): void {
    this.#ends_at_ms.delete(launch_id);
    rmSync(join(launch_folder, launchFiles.delegation), { force: true });
  }

  /** One of another key of ours, or that was damaged, is written anew. */
  async #read({ launch_id, launch_folder }: DelegatedLaunch): Promise<Delegation | undefined> {
    try {
      const path = join(launch_folder, launchFiles.delegation);
      const found = await Delegation.read(path, launchScope(launch_id));
      return found?.provider_id === this.#key().id ? found : undefined;
    } catch (error) {
      if (error instanceof HpcserveError && error.code === 'E_DELEGATION') return undefined;
      throw error;
    }
  }

  #write(
    { launch_id, launch_folder, time_limit_s }: DelegatedLaunch,
    now_ms: number,
    current: Delegation | undefined,
  ): void {
    const delegation = this.#key().delegate({
      name: this.#name,
      scope: launchScope(launch_id),
      not_after_s: delegationEnd_s(now_ms, time_limit_s),
      launch_key: current?.launch_key,
    });
    writeFileAtomically(join(launch_folder, launchFiles.delegation), delegation.toText());
    this.#ends_at_ms.set(launch_id, delegation.ends_at_ms);
  }

  /** Read each time: it is in memory for as long as it signs. */
  #key(): ProviderKey {
    return ProviderKey.loadOrCreate(providerKeyFile(this.#layout, process.getuid!()));
  }
}
