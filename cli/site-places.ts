import type { SitePlaces } from '../control/state/site-list.ts';
import type { CliContext } from './context.ts';

/** Where this person's site configs are looked for. */
export function sitePlaces(context: CliContext): SitePlaces {
  const { configuration, working_folder, environment } = context;
  return {
    user_folder: configuration.user_folder,
    site_wide_folder: configuration.site_wide_folder,
    working_folder,
    environment,
  };
}
