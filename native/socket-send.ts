import type { Socket } from 'node:net';
import koffi, { type LibraryHandle } from 'koffi';
import type { DirectConnection } from '../host/write-events.ts';

/** From <sys/socket.h>: nothing waits, and a connection that is gone is an error in place of a signal. */
const msg_dontwait = 0x40;
const msg_nosignal = 0x4000;

/** send(2), without waiting. @returns bytes that the kernel took; −1 where it took none */
type Send = (fd: number, bytes: Buffer) => number;

/** Undefined where the C library is not the one that this knows (musl); null before anybody asked. */
let opened: Send | undefined | null = null;

/**
 * Lets small pieces go out on a connection in one system call and no more: the write of a stream of Node's is as much
 * work again as the kernel's. What the kernel does not take at once, and every error, is Node's to deal with.
 *
 * @param socket without TLS, connected; its handle is Node's own word for what has the file descriptor, and is gone
 * where the connection is
 */
export function sendPastStream(socket: Socket & { _handle?: { fd?: number } | null }): void {
  if (opened === null) opened = open();
  const send = opened;
  const { _handle: handle } = socket;
  const fd = handle?.fd ?? -1;
  if (send === undefined || fd < 0) return;
  const direct: DirectConnection = {
    sendNow: (bytes) => {
      if (socket._handle !== handle) return false;
      const taken = send(fd, bytes);
      if (taken <= 0) return false;
      if (taken < bytes.length) socket.write(Buffer.from(bytes.subarray(taken)));
      return true;
    },
  };
  Object.assign(socket, direct);
}

function open(): Send | undefined {
  let libc: LibraryHandle;
  try {
    libc = koffi.load('libc.so.6');
  } catch {
    return undefined; // another C library
  }
  const send = libc.func('long send(int socket, const void *bytes, size_t length, int flags)');
  return (fd, bytes) => send(fd, bytes, bytes.length, msg_dontwait | msg_nosignal) as number;
}
