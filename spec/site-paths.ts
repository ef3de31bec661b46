/** Paths of site configs: `~` and `$NAME` mean what they mean in a shell of the user, and nothing else does. */
import { HpcserveError } from './errors/error.ts';

/**
 * `text` with a leading `~` and every `$NAME` or `${NAME}` replaced from `environment`.
 * @throws E_CONFIG_MISSING when a variable is not set: an empty replacement would point somewhere else.
 */
export function expandSitePath(
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
): string {
  const withHome = text === '~' || text.startsWith('~/') ? `$HOME${text.slice(1)}` : text;
  return withHome.replace(/\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))/g, (_, braced, bare) => {
    const name: string = braced ?? bare;
    const value = environment[name];
    if (value === undefined || value === '')
      throw new HpcserveError('E_CONFIG_MISSING', {
        what: `the path ${text} needs $${name}, which is not set`,
        try: `set ${name}, or write the path in full in the site config`,
        details: { path: text, variable: name },
      });
    return value;
  });
}
