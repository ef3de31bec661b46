import { join } from 'node:path';
import { packageRoot } from '../../spec/package-root.ts';

/** What runs in a network namespace of its own; see main.ts. */
export interface PrivateNetworkPlan {
  /** The unix socket that leads to the server; it appears once the server listens and `first` is done. */
  socket: string;
  /** On which the server listens on its own loopback. */
  port: number;
  serve: string[];
  /** Commands that have to succeed before anybody may reach the server, in order. */
  first: string[][];
}

/** Words that put a command into a network namespace without an interface, as nobody but this user. */
export const inPrivateNetwork: readonly string[] = ['unshare', '--map-root-user', '--net', '--'];

/** The command line for a plan in a file. */
export function privateNetworkArgv(plan_file: string): string[] {
  return [
    ...inPrivateNetwork,
    process.execPath,
    join(packageRoot, 'dist/agent/private-network/main.js'),
    plan_file,
  ];
}
