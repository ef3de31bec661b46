import type { TLSSocket } from 'node:tls';
import type { ChannelConnection } from '../../mesh/index.ts';

/** Bytes to a session and back: a TLS connection of its own, or a channel of one that requests share. */
export interface SessionWay {
  /** What it goes over carried other requests before: it may be gone by now without anybody knowing. */
  readonly kept: boolean;
  /** A text is latin1. False: it waits; write again when `drained` was called. */
  write(bytes: Buffer | string): boolean;
  pause(): void;
  resume(): void;
  /** The session sees that nobody listens any more. */
  destroy(): void;
}

/** Who uses a way. */
export interface WayEvents {
  /** @param bytes stay as they are */
  read(bytes: Buffer): void;
  drained(): void;
  /** The session has said all. */
  ended(): void;
  /** It is over. */
  lost(error: Error): void;
}

/** Dials a session, whose key is verified. @param read what arrives goes there, in bytes valid during the call only */
export type Dial = (read: (bytes: Buffer) => void) => Promise<TLSSocket>;

/** A connection of its own. */
export async function socketWay(dial: Dial, events: WayEvents): Promise<SessionWay> {
  const socket = await dial((bytes) => events.read(Buffer.from(bytes)));
  socket.on('error', (error) => events.lost(error));
  socket.on('end', () => events.ended());
  socket.on('close', () => events.lost(new Error('the connection was closed')));
  socket.on('drain', () => events.drained());
  return {
    kept: false,
    write: (bytes) => (typeof bytes === 'string' ? socket.write(bytes, 'latin1') : socket.write(bytes)),
    pause: () => void socket.pause(),
    resume: () => void socket.resume(),
    destroy: () => void socket.destroy(),
  };
}

/** @throws Error where the connection has no room, or is closed */
export function channelWay(connection: ChannelConnection, events: WayEvents): SessionWay {
  const kept = connection.opened > 0;
  const channel = connection.open({
    data: (bytes) => events.read(bytes),
    ended: () => events.ended(),
    drained: () => events.drained(),
    closed: (error) => events.lost(error ?? new Error('the channel was closed')),
  });
  // The connection may have ended over this very frame, if its peer reads nothing.
  if (channel.over) throw new Error('the connection was closed');
  return {
    kept,
    write: (bytes) => channel.write(bytes),
    pause: () => channel.pause(),
    resume: () => channel.resume(),
    destroy: () => channel.reset(),
  };
}
