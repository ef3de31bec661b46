import { constants } from 'node:os';
import koffi from 'koffi';

/** linux/if.h and linux/sockios.h; the same on every architecture. */
const siocgifflags = 0x8913;
const siocsifflags = 0x8914;
const iff_up = 0x1;
/** struct ifreq: 16 bytes of name, then a union of 24. */
const ifreq_bytes = 40;
const flags_offset = 16;
const af_inet = 2;
const sock_dgram = 2;

/**
 * Brings the loopback interface of this process's network namespace up: a new namespace has it down, and `ip` is not on
 * every node.
 * @throws Error with the errno where the kernel refuses
 */
export function bringLoopbackUp(): void {
  const libc = koffi.load('libc.so.6');
  const socket = libc.func('int socket(int domain, int type, int protocol)');
  const ioctl = libc.func('int ioctl(int fd, unsigned long request, ...)');
  const close = libc.func('int close(int fd)');
  const fd = socket(af_inet, sock_dgram, 0) as number;
  if (fd < 0) throw new Error(`no socket for the loopback interface: errno ${koffi.errno()}`);
  try {
    const request = Buffer.alloc(ifreq_bytes);
    request.write('lo');
    for (const [call, set] of [
      [siocgifflags, false],
      [siocsifflags, true],
    ] as const) {
      if (set) request.writeInt16LE(request.readInt16LE(flags_offset) | iff_up, flags_offset);
      if ((ioctl(fd, call, 'uint8_t *', request) as number) === 0) continue;
      const errno = koffi.errno();
      const why = errno === constants.errno.EPERM ? 'the kernel does not permit it' : `errno ${errno}`;
      throw new Error(`the loopback interface stays down: ${why}`);
    }
  } finally {
    close(fd);
  }
}
