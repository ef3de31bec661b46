/** What commands print at a site with `--json`: lines of events, and `deploy` where it serves. */
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';

const deployedSchema = z.object({
  deployment: z.string(),
  site: z.string(),
  url: z.string(),
  key: z.string(),
  models: z.array(z.string()),
  serving: z.boolean(),
});
/** What `deploy` said at one site. */
export type DeployedSite = z.infer<typeof deployedSchema>;

/** What each kind holds besides is for whoever shows it. */
const eventSchema = z.looseObject({ at_ms: z.number(), kind: z.string() });

/** @throws E_SITES_DIFFER */
export function eventIn(site: string, line: string): ProgressEvent {
  return understood(site, eventSchema, line) as unknown as ProgressEvent;
}

/** @throws E_SITES_DIFFER */
export function deployLine(
  site: string,
  line: string,
): { event: ProgressEvent } | { deployed: DeployedSite } {
  const said = understood(site, z.union([eventSchema, deployedSchema]), line);
  return 'kind' in said ? { event: said as unknown as ProgressEvent } : { deployed: said as DeployedSite };
}

/** The JSON that a command printed there, as this version knows it. @throws E_SITES_DIFFER with where it differs */
export function understood<Schema extends z.ZodType>(
  site: string,
  schema: Schema,
  text: string,
): z.infer<Schema> {
  const differs = (because: string[]): HpcserveError =>
    new HpcserveError('E_SITES_DIFFER', {
      what: `what ${site} answers is not understood here`,
      because,
      try: 'run the same version of hpcserve on all sites',
      details: { at_site: site },
    });
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw differs([(error as Error).message]);
  }
  const read = schema.safeParse(json, { jitless: true });
  if (read.success) return read.data;
  throw differs(read.error.issues.slice(0, 5).map(({ path, message }) => `${path.join('.')}: ${message}`));
}
