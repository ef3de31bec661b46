/** What a gateway and its holder say to each other over the channel that Node makes between parent and child. */
import type { SendHandle, StdioOptions } from 'node:child_process';
import type { Server } from 'node:net';

/** Both are asked for by the site config; see docs/gateway.md. */
export const heldNames = ['port', 'socket'] as const;
export type HeldName = (typeof heldNames)[number];

/** From the gateway, with the listening socket itself, or without one: it answers now. */
export type HolderMessage = { hold: HeldName } | { listens: true };

/**
 * A listening socket as another process can have it without accepting from it: Node's own handle. A `Server` that is
 * sent begins to accept where it arrives.
 */
export interface SocketHandle {
  readonly fd: number;
  close(): void;
}

export function handleOf(server: Server): SendHandle & SocketHandle {
  return (server as Server & { _handle: SendHandle & SocketHandle })._handle;
}

/** The options of a program of a gateway or a holder that name the descriptors it inherits. */
export const inheritOptions = { port: 'port-fd', socket: 'socket-fd' } as const;
/** As `parseArgs` takes them. */
export const inheritArguments = {
  [inheritOptions.port]: { type: 'string' },
  [inheritOptions.socket]: { type: 'string' },
} as const;

/** Descriptors of listening sockets. */
export type Inherited = { [name in HeldName]?: number | undefined };

/** The first descriptor of a child that is neither its input, output nor channel. */
const firstInherited = 4;

/** How a child is started that has listening sockets from its first moment, with a channel to its parent. */
export function inheriting(held: ReadonlyMap<HeldName, { readonly fd: number }>): {
  arguments: string[];
  stdio: StdioOptions;
} {
  const names = [...held.keys()];
  return {
    arguments: names.flatMap((name, index) => [`--${inheritOptions[name]}`, String(firstInherited + index)]),
    stdio: ['ignore', 'inherit', 'inherit', 'ipc', ...[...held.values()].map(({ fd }) => fd)],
  };
}

/** @param values of the options, as they were parsed */
export function inheritedOf(
  values: { [option in (typeof inheritOptions)[HeldName]]?: string | undefined },
): Inherited {
  const fd = (text: string | undefined): number | undefined =>
    text === undefined ? undefined : Number(text);
  return { port: fd(values[inheritOptions.port]), socket: fd(values[inheritOptions.socket]) };
}
