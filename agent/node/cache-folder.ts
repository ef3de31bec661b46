import { homedir } from 'node:os';
import { join } from 'node:path';

/** The user's own, or where the job's script says that caches are to be. */
export function cacheFolder(environment: NodeJS.ProcessEnv): string {
  return join(environment.XDG_CACHE_HOME ?? join(environment.HOME ?? homedir(), '.cache'), 'hpcserve');
}
