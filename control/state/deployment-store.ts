import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { FolderLock } from '../../host/folder-lock.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { appendJobRecords } from '../../ledger/jobs/job-records.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemCode } from '../../spec/errors/system-error.ts';
import type { JobRecord } from '../../spec/job-record.ts';
import { nearest } from '../../spec/nearest.ts';
import { deploymentFiles, type StateLayout } from '../../spec/state-layout.ts';
import { type DeploymentState, deploymentStateSchema } from './deployment-state.ts';
import { aroundChange, type LockRequest } from './locks.ts';

/** Who changes deployments; every `Operations` is one. */
export interface Writer {
  /** Shown to others that wait for the lock: `hpcserve deploy`. */
  command: string;
  now_ms: () => number;
  signal?: AbortSignal;
  /** How long to wait for others at the same deployment, ms. Default: `lockWait_ms.command`. */
  lock_wait_ms?: number;
  /** Hears of a lock that is waited for. */
  emit?: LockRequest['emit'];
}

/**
 * How long to wait for another command that works on the same deployment, ms: a slow sbatch holds it. Services come
 * round again soon. Lower: news of a lock that is never given back sooner; higher: fewer commands that fail beside a
 * slow scheduler.
 */
export const lockWait_ms = { command: 120_000, service: 30_000 } as const;

/** A deployment while its lock is ours. */
export class LockedDeployment {
  readonly #name: string;
  readonly #store: DeploymentStore;
  readonly #lock: FolderLock;
  readonly #now_ms: () => number;
  #state: DeploymentState | undefined;

  constructor(name: string, store: DeploymentStore, lock: FolderLock, now_ms: () => number) {
    this.#name = name;
    this.#store = store;
    this.#lock = lock;
    this.#now_ms = now_ms;
    this.#state = store.load(name);
  }

  /** As it was found, or as it was saved last; undefined where there is none yet. */
  get found(): DeploymentState | undefined {
    return this.#state;
  }

  /** @throws E_DEPLOYMENT_UNKNOWN */
  get state(): DeploymentState {
    return this.#state ?? this.#store.require(this.#name);
  }

  /** @throws E_DEPLOYMENT_LOCKED where another took the lock over meanwhile; E_STATE_FOLDER */
  save(next: DeploymentState): void {
    this.assertHeld();
    const state = { ...next, updated_at_ms: this.#now_ms() };
    this.#store.write(state);
    this.#state = state;
  }

  /** Before an effect that must not happen twice. @throws E_DEPLOYMENT_LOCKED */
  assertHeld(): void {
    this.#lock.assertHeld();
  }
}

/**
 * Deployments on disk: `<state_dir>/<site>/deployments/<name>/`, see spec/state-layout.ts. A record changes in one way
 * only, under the lock of its folder, whoever changes it and from whichever host:
 *
 *   update(name, writer, change):   lock ─► load ─► change(state) ─► check ─► write whole ─► unlock
 *                                                        └─ undefined: nothing is to be changed ─┘
 *
 *   locked(name, writer, work):     lock ─► load ─► work(record) ────────────────────────────► unlock
 *                                                     record.save(intent)   check ─► still ours? ─► write whole
 *                                                     the effect            sbatch, scancel
 *                                                     record.save(answer)   check ─► still ours? ─► write whole
 *
 * `locked` is for effects that must not happen twice: a command that dies between the two leaves the intent behind.
 */
export class DeploymentStore {
  readonly layout: StateLayout;

  constructor(layout: StateLayout) {
    this.layout = layout;
  }

  folder(name: string): string {
    return join(this.layout.deployments_folder, name);
  }

  /** What workers had in memory when they left, for those that take their places. */
  manifestFolder(name: string): string {
    return join(this.folder(name), deploymentFiles.manifests);
  }

  /** What the jobs of one pipeline have in common. */
  pipelinesFolder(name: string): string {
    return join(this.folder(name), deploymentFiles.pipelines);
  }

  launchFolder(name: string, launchId: string): string {
    return join(this.folder(name), deploymentFiles.launches, launchId);
  }

  /** Makes the state folders of the site, 0700. @throws E_STATE_FOLDER with the reason of the system. */
  prepareSite(): void {
    for (const folder of [
      this.layout.root,
      this.layout.mesh_folder,
      this.layout.gateway_folder,
      this.layout.deployments_folder,
    ])
      prepareFolder(folder);
  }

  prepareDeployment(name: string): void {
    this.prepareSite();
    prepareFolder(join(this.folder(name), deploymentFiles.launches));
  }

  /** Names of deployments that have a state file, sorted. */
  list(): string[] {
    let names: string[];
    try {
      names = readdirSync(this.layout.deployments_folder);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw stateFolderError(this.layout.deployments_folder, error);
    }
    return names.filter((name) => existsSync(join(this.folder(name), deploymentFiles.state))).sort();
  }

  /** @returns undefined where there is no such deployment. @throws E_DEPLOYMENT_STATE on a damaged file. */
  load(name: string): DeploymentState | undefined {
    const path = join(this.folder(name), deploymentFiles.state);
    let text: string;
    try {
      text = readFileSync(path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw stateFolderError(path, error);
    }
    const damaged = (because: string): HpcserveError =>
      new HpcserveError('E_DEPLOYMENT_STATE', { what: `${path} cannot be read as a deployment`, because });
    let json: unknown;
    try {
      json = JSON.parse(text);
    } catch (error) {
      throw damaged((error as Error).message);
    }
    const parsed = deploymentStateSchema.safeParse(json, { jitless: true });
    if (!parsed.success) throw damaged(z.prettifyError(parsed.error));
    return parsed.data;
  }

  /** Every deployment that can be read, and what is wrong with each of the others. @throws E_STATE_FOLDER */
  loadAll(): { states: DeploymentState[]; unreadable: HpcserveError[] } {
    const states: DeploymentState[] = [];
    const unreadable: HpcserveError[] = [];
    for (const name of this.list())
      try {
        const state = this.load(name);
        if (state) states.push(state);
      } catch (error) {
        unreadable.push(HpcserveError.from(error));
      }
    return { states, unreadable };
  }

  /** @throws E_DEPLOYMENT_UNKNOWN with the nearest name. */
  require(name: string): DeploymentState {
    const state = this.load(name);
    if (state) return state;
    const names = this.list();
    const near = nearest(name, names);
    throw new HpcserveError('E_DEPLOYMENT_UNKNOWN', {
      what: `there is no deployment "${name}"`,
      because: `${this.layout.deployments_folder} holds ${names.length > 0 ? names.join(', ') : 'none'}`,
      try: near && `did you mean "${near}"?`,
    });
  }

  /**
   * Changes the record of a deployment as it is now.
   * @param change pure; undefined where nothing is to be changed
   * @returns the state as written, or undefined
   * @throws E_DEPLOYMENT_UNKNOWN, E_DEPLOYMENT_LOCKED, E_STATE_FOLDER
   */
  update(
    name: string,
    writer: Writer,
    change: (state: DeploymentState) => DeploymentState | undefined,
  ): Promise<DeploymentState | undefined> {
    return this.locked(name, writer, async (record) => {
      const next = change(record.state);
      if (next === undefined) return undefined;
      record.save(next);
      return record.state;
    });
  }

  /** Works on a deployment that nobody else changes meanwhile. @throws E_DEPLOYMENT_LOCKED, and what `work` does */
  async locked<T>(
    name: string,
    { command, signal, now_ms, emit, lock_wait_ms = lockWait_ms.command }: Writer,
    work: (record: LockedDeployment) => Promise<T>,
  ): Promise<T> {
    const path = join(this.folder(name), deploymentFiles.lock);
    const lock = await FolderLock.acquire(
      path,
      aroundChange({ command, signal, emit, timeout_ms: lock_wait_ms }),
    );
    try {
      return await work(new LockedDeployment(name, this, lock, now_ms));
    } finally {
      lock.release();
    }
  }

  /**
   * Writes the record of a deployment whose lock is held: `update` and `locked` do.
   * @throws E_STATE_FOLDER; E_INTERNAL for one that nobody could read again
   */
  write(state: DeploymentState): void {
    const path = join(this.folder(state.name), deploymentFiles.state);
    const checked = deploymentStateSchema.safeParse(state, { jitless: true });
    if (!checked.success)
      throw new HpcserveError('E_INTERNAL', {
        what: `${path} was about to be written as no deployment can be`,
        because: z.prettifyError(checked.error),
      });
    try {
      writeFileAtomically(path, `${JSON.stringify(state, null, 2)}\n`);
    } catch (error) {
      throw stateFolderError(path, error);
    }
  }

  /** Adds to what is kept of its jobs, whatever becomes of it; its lock is held. @throws E_STATE_FOLDER */
  keepJobRecords(name: string, records: readonly JobRecord[]): void {
    const { jobs_folder } = this.layout;
    try {
      appendJobRecords(jobs_folder, name, records);
    } catch (error) {
      throw stateFolderError(jobs_folder, error);
    }
  }

  /** Removes the folder of a deployment that never had a job. */
  remove(name: string): void {
    rmSync(this.folder(name), { recursive: true, force: true });
  }

  /**
   * Removes a deployment's folder, so that none of its launches is mistaken for one of the next deployment of its name.
   * @throws E_STATE_FOLDER
   */
  forget(name: string): void {
    const path = join(this.layout.root, forgottenName);
    try {
      // Of two at one moment either may stand here: that it is another than before is all that counts.
      writeFileAtomically(path, randomBytes(8).toString('hex'));
    } catch (error) {
      throw stateFolderError(path, error);
    }
    this.remove(name);
  }

  /** Another one after each `forget`; undefined where nothing was ever forgotten. */
  lastForgotten(): string | undefined {
    const path = join(this.layout.root, forgottenName);
    try {
      return readFileSync(path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw stateFolderError(path, error);
    }
  }

  /**
   * Plans and writes the plan down while no other command of the site does: two at one moment would count on the same
   * free nodes. Where another one takes long, this one goes on beside it.
   */
  async whilePlanning<T>(
    { command, signal, emit }: Pick<Writer, 'command' | 'signal' | 'emit'>,
    work: () => Promise<T>,
  ): Promise<T> {
    // Nothing is made before there is a plan; whoever is the first here is alone.
    if (!existsSync(this.layout.deployments_folder)) return work();
    const path = join(this.layout.deployments_folder, planLockName);
    const asked = aroundChange({ command, signal, emit, timeout_ms: planLockWait_ms });
    const lock = await FolderLock.acquire(path, asked).catch((error: unknown) => {
      const isTaken = error instanceof HpcserveError && error.code === 'E_DEPLOYMENT_LOCKED';
      // A full disk: what is written next says so in words.
      const isUnwritable = !(error instanceof HpcserveError) && systemCode(error) !== undefined;
      if (signal?.aborted || !(isTaken || isUnwritable)) throw error;
      return undefined;
    });
    try {
      return await work();
    } finally {
      lock?.release();
    }
  }

  /** Starts or ends gateways of the site while nobody else does. @throws E_DEPLOYMENT_LOCKED, and what `work` does */
  async withGatewayLock<T>(
    { command, signal, emit, lock_wait_ms = gatewayLockWait_ms }: Omit<Writer, 'now_ms'>,
    work: () => Promise<T>,
  ): Promise<T> {
    const path = join(this.layout.gateway_folder, 'lock');
    const lock = await FolderLock.acquire(
      path,
      aroundChange({ command, signal, emit, timeout_ms: lock_wait_ms }),
    );
    try {
      return await work();
    } finally {
      lock.release();
    }
  }
}

/** Beside the folders of deployments, whose names begin with a letter or a digit. */
const planLockName = '.planning.lock';
/** Beside that folder. */
const forgottenName = 'forgotten';
/** How long to wait for another command that plans, ms. Lower: sooner; higher: fewer plans for the same nodes. */
const planLockWait_ms = 15_000;
/** How long to wait for another command that starts or ends a gateway of the site, ms. */
const gatewayLockWait_ms = 90_000;

function prepareFolder(folder: string): void {
  try {
    makeFolders(folder);
    if (!statSync(folder).isDirectory()) throw new Error('it is not a folder');
  } catch (error) {
    throw stateFolderError(folder, error);
  }
}

function stateFolderError(path: string, error: unknown): HpcserveError {
  const { message } = error as Error;
  const code = systemCode(error);
  return new HpcserveError('E_STATE_FOLDER', {
    what: `the state folder cannot be used: ${path}`,
    because: message,
    try:
      code === 'ENOSPC' ? `free space on the filesystem of ${dirname(path)}, or name another state_dir` : [],
    cause: error,
  });
}
