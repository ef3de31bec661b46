import { join } from 'node:path';
import { compiledFile } from '../../host/programs.ts';
import type { CommandLine } from '../adapters/adapter.ts';

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
  return [...inPrivateNetwork, process.execPath, compiledFile('agent/private-network/main.js'), plan_file];
}

/**
 * The same server in a network namespace of its own: its port is of nobody else's loopback, and a socket in its folder
 * leads to it. As it is where it listens on a socket already.
 */
export function withPrivateNetwork(line: CommandLine, runtime_folder: string): CommandLine {
  if (line.listen.kind === 'socket') return line;
  const [socket, plan_file] = ['engine.sock', 'plan.json'].map((name) => join(runtime_folder, name)) as [
    string,
    string,
  ];
  const plan: PrivateNetworkPlan = { socket, port: line.listen.port, serve: line.argv, first: [] };
  return {
    ...line,
    argv: privateNetworkArgv(plan_file),
    listen: { kind: 'socket', path: socket },
    files: [...line.files, { path: plan_file, content: JSON.stringify(plan) }],
  };
}
