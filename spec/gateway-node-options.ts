/**
 * How Node starts a gateway. Its own code on large pages: what a request runs through is spread over tens of megabytes
 * of it, and looking up pages is 5 to 8 % of a request otherwise. Silent, since not every kernel has such pages.
 */
export const gatewayNodeOptions: readonly string[] = ['--enable-source-maps', '--use-largepages=silent'];
