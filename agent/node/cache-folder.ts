import { join } from 'node:path';
import { homeFolder } from '../../host/own-user.ts';

/** The user's own, or where the job's script says that caches are to be. */
export function cacheFolder(environment: NodeJS.ProcessEnv): string {
  return join(environment.XDG_CACHE_HOME ?? join(homeFolder(environment), '.cache'), 'hpcserve');
}
