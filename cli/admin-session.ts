/** The administration of a gateway of the site, for commands of whoever deployed it. */

import { GatewayAdmin } from '../control/gateway/admin.ts';
import { readAdminToken } from '../control/gateway/process.ts';
import { baseUrl } from '../control/gateway/url.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { CliContext } from './context.ts';
import { anyGateway, openSite } from './site-session.ts';

/** @throws HpcserveError E_GATEWAY_UNREACHABLE where none of the site's gateways answers */
export async function openAdmin(
  context: CliContext,
): Promise<{ admin: GatewayAdmin; url: string; gateway_folder: string; site: string }> {
  const { layout: all, site } = openSite(context);
  const { layout, status } = await anyGateway(all);
  if (status.state !== 'running')
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `the gateway of ${site.name} cannot be reached`,
      because: status.because,
    });
  const { endpoint } = status;
  return {
    admin: new GatewayAdmin(endpoint, readAdminToken(layout)),
    url: baseUrl(endpoint),
    gateway_folder: all.gateway_folder,
    site: site.name,
  };
}
