/** What the login node says about its filesystems: where state can lie so that compute nodes see it. */
import { accessSync, constants, realpathSync } from 'node:fs';
import { type Mount, readMounts } from './mounts.ts';

/** What `discoverSite` asks the machine it runs on. */
export interface HostFacts {
  environment: Readonly<Record<string, string | undefined>>;
  mounts: readonly Pick<Mount, 'mount_point' | 'type'>[];
  /** The real path when the folder exists and can be written, else undefined. */
  writableFolder(path: string): string | undefined;
}

export function readHostFacts(): HostFacts {
  return {
    environment: process.env,
    mounts: readMounts(),
    writableFolder(path) {
      try {
        accessSync(path, constants.W_OK | constants.X_OK);
        return realpathSync(path);
      } catch {
        // Not there or not ours: no candidate.
        return undefined;
      }
    },
  };
}
