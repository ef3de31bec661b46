/*
 * No process of ours that serves is started with `--enable-source-maps`. Node reads the map of a program as it loads
 * it: 140 MB of memory, and a third of the start of a gateway. It takes it apart at the first error of a connection,
 * since its streams ask for the stack: half a second in which everybody waits, and which comes as an engine dies.
 */

/**
 * How Node starts a gateway.
 *
 * - Its own code on large pages: what a request runs through is spread over tens of megabytes of it, and looking up
 *   pages is 5 to 8 % of a request otherwise. Silent, since not every kernel has such pages.
 * - Young garbage is collected by the thread that makes it, alone. That takes 3 to 9 ms; with helpers, for whom it
 *   waits where the gateway has a core or two that are busy, 20 to 80.
 */
export const gatewayNodeOptions: readonly string[] = [
  '--use-largepages=silent',
  '--no-parallel-scavenge',
  '--no-concurrent-array-buffer-sweeping',
];

/**
 * How Node starts the process that holds a gateway's port: it does next to nothing, and should cost next to nothing.
 */
export const holderNodeOptions: readonly string[] = [
  '--max-old-space-size=32',
  '--max-semi-space-size=1',
  '--v8-pool-size=0',
];
