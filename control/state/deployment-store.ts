/** Deployments on disk: `<state_dir>/<site>/deployments/<name>/`, see spec/state-layout.ts. */
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { FolderLock } from '../../host/folder-lock.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemCode } from '../../spec/errors/system-error.ts';
import { nearest } from '../../spec/nearest.ts';
import { deploymentFiles, type StateLayout } from '../../spec/state-layout.ts';
import { type DeploymentState, deploymentStateSchema } from './deployment-state.ts';
import { aroundChange, type LockRequest } from './locks.ts';

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

  /** @throws E_DEPLOYMENT_UNKNOWN with the nearest name. */
  require(name: string): DeploymentState {
    const state = this.load(name);
    if (state) return state;
    const names = this.list();
    const near = nearest(name, names);
    throw new HpcserveError('E_DEPLOYMENT_UNKNOWN', {
      what: `there is no deployment "${name}"`,
      because: `${this.layout.deployments_folder} holds ${names.length > 0 ? names.join(', ') : 'none'}`,
      ...(near ? { try: `did you mean "${near}"?` } : {}),
    });
  }

  save(state: DeploymentState, now_ms: number): void {
    state.updated_at_ms = now_ms;
    const path = join(this.folder(state.name), deploymentFiles.state);
    try {
      writeFileAtomically(path, `${JSON.stringify(state, null, 2)}\n`);
    } catch (error) {
      throw stateFolderError(path, error);
    }
  }

  /** Removes a deployment's folder; for `stop --purge`. */
  remove(name: string): void {
    rmSync(this.folder(name), { recursive: true, force: true });
  }

  /** @throws E_DEPLOYMENT_LOCKED with who has it where it stays taken; so does `assertHeld()` of what it returns */
  lock(name: string, request: LockRequest): Promise<FolderLock> {
    return FolderLock.acquire(join(this.folder(name), deploymentFiles.lock), aroundChange(request));
  }

  /** The lock around starting and stopping the one gateway of the site. */
  lockGateway(request: LockRequest): Promise<FolderLock> {
    return FolderLock.acquire(join(this.layout.gateway_folder, 'lock'), aroundChange(request));
  }
}

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
    ...(code === 'ENOSPC'
      ? { try: `free space on the filesystem of ${dirname(path)}, or name another state_dir` }
      : {}),
    cause: error,
  });
}
