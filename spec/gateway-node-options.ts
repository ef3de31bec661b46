/**
 * How Node starts a gateway. Its own code on large pages: what a request runs through is spread over tens of megabytes
 * of it, and looking up pages is 5 to 8 % of a request otherwise. Silent, since not every kernel has such pages.
 */
export const gatewayNodeOptions: readonly string[] = ['--enable-source-maps', '--use-largepages=silent'];

/**
 * How Node starts the process that holds a gateway's port: it does next to nothing, and should cost next to nothing.
 */
export const holderNodeOptions: readonly string[] = [
  '--enable-source-maps',
  '--max-old-space-size=32',
  '--max-semi-space-size=1',
  '--v8-pool-size=0',
];
