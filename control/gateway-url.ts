import type { GatewayEndpoint } from '../spec/state-layout.ts';

/** Base URL for OpenAI clients. */
export function baseUrl(endpoint: Pick<GatewayEndpoint, 'url'>): string {
  return new URL('/v1', endpoint.url).href;
}
