/** What a gateway and its holder say to each other over the channel that Node makes between parent and child. */
import type { SendHandle } from 'node:child_process';
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

/** The options of a gateway's program that name the descriptors it inherits. */
export const inheritOptions: Readonly<Record<HeldName, string>> = { port: 'port-fd', socket: 'socket-fd' };
