/** Sockets to the engines of this host. */
import { connect, type OnReadOpts, type Socket } from 'node:net';
import { peerOf } from '../../host/tcp-table.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Upstream } from './serving-process.ts';

/** Called once; with an error, the socket is destroyed. */
type Created = (error: Error | null, socket: Socket) => void;

interface Reading {
  /** Who reads without Node's streams; absent: they do. */
  onread?: OnReadOpts;
}

/** Connects to an engine on this host. */
export function connectToEngine(upstream: Upstream, reading: Reading, created: Created): void {
  if (upstream.kind === 'loopback') {
    connectToOwnPort(upstream.port, reading, created);
    return;
  }
  const socket = connect({ ...reading, path: upstream.path });
  const fail = (error: Error): void => created(error, socket);
  socket.once('error', fail);
  socket.once('connect', () => {
    socket.off('error', fail);
    created(null, socket);
  });
}

/**
 * Connects to a loopback port of an engine. A port that was free when the engine was started may be another user's by
 * the time it is asked, for anybody on the node sees it in the engine's arguments: before the first byte, key included,
 * is sent, the kernel is asked whose process has accepted this very connection.
 */
export function connectToOwnPort(port: number, reading: Reading, created: Created): void {
  const socket = connect({ ...reading, host: '127.0.0.1', port });
  const closed = new AbortController();
  const fail = (error: Error): void => created(error, socket);
  socket.once('error', fail);
  socket.once('close', () => closed.abort(new Error('the connection was closed before anything was sent')));
  socket.once('connect', () => {
    requireOwn(port, socket.localPort!, closed.signal).then(
      () => {
        socket.off('error', fail);
        created(null, socket);
      },
      (error: Error) => {
        socket.off('error', fail);
        socket.destroy();
        fail(closed.signal.aborted ? (closed.signal.reason as Error) : error);
      },
    );
  });
}

/** @throws HpcserveError E_AGENT_ENGINE_PORT */
async function requireOwn(port: number, own_port: number, signal: AbortSignal): Promise<void> {
  const user = await peerOf(port, own_port, signal);
  if (user === process.getuid!()) return;
  throw new HpcserveError('E_AGENT_ENGINE_PORT', {
    what: `port ${port} of this node is not the engine's: another user listens there`,
    because: `the kernel names user id ${user}; nothing was sent to it`,
    details: { port },
  });
}
