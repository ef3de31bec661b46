import type { GatewayEndpoint } from '../../spec/state-layout.ts';

/** Base URL for OpenAI clients. */
export function baseUrl(endpoint: Pick<GatewayEndpoint, 'url'>): string {
  return new URL('/v1', endpoint.url).href;
}

/** What a client needs beside the URL, and another way to the gateway. */
export interface GatewayWays {
  /** PEM file that clients are to trust; absent where they need none. */
  ca_file?: string;
  /** Unix socket for clients of the gateway's host. */
  socket?: string;
}

export function waysOf({ ca_file, socket }: GatewayEndpoint): GatewayWays {
  return { ca_file, socket };
}
