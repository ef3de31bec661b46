/** Where on the disk of this node a device worker may leave the KV of requests that gave way. */
import { accessSync, constants, realpathSync, statfsSync } from 'node:fs';
import { makeFolders } from '../../host/make-folders.ts';
import { isSharedFilesystem, type Mount, mountTypeOf, readMounts } from '../../host/mounts.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import type { SiteSharing } from '../../spec/sharing-settings.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import type { ParkingFolder } from '../device-worker/compute/messages.ts';

/** Where the site says nothing. Lower: more is computed twice; higher: less is left of the disk for others. */
const parking_gb_default = 16;
/** Of what is free there, that one worker may take. */
const free_share = 0.5;
/** What is written there is memory, and host memory is taken without a detour. */
const memoryTypes = /^(tmpfs|ramfs|rootfs)$/;

/**
 * @param environment of the job
 * @param mountsNow asked once the folder is there: looking for it may have mounted what it is on
 * @returns undefined where the site names none
 * @throws HpcserveError E_WORKER_PARKING: it cannot be used
 */
export function parkingFolder(
  { parking_dir, parking_gb = parking_gb_default }: SiteSharing,
  environment: NodeJS.ProcessEnv,
  mountsNow: () => readonly Mount[] = readMounts,
): ParkingFolder | undefined {
  if (parking_dir === undefined) return undefined;
  const refuse = (because: string, cause?: unknown): never => {
    throw new HpcserveError('E_WORKER_PARKING', {
      what: `keys and values cannot wait in ${parking_dir} (sharing.parking_dir)`,
      because,
      cause,
    });
  };
  try {
    const path = expandSitePath(parking_dir, environment);
    makeFolders(path);
    const folder = realpathSync(path);
    const type = mountTypeOf(folder, mountsNow());
    if (isSharedFilesystem(type)) return refuse(`${folder} is on ${type}, which other nodes mount, too`);
    if (type !== undefined && memoryTypes.test(type))
      return refuse(`${folder} is on ${type}, which takes the memory of the node`);
    accessSync(folder, constants.W_OK | constants.X_OK);
    const { bavail, bsize } = statfsSync(folder);
    return { folder, bytes_max: Math.floor(Math.min(1e9 * parking_gb, free_share * bavail * bsize)) };
  } catch (error) {
    if (error instanceof HpcserveError && error.code === 'E_WORKER_PARKING') throw error;
    return refuse(systemMessage(error), error);
  }
}
