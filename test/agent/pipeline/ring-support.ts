/** The connections of a ring in one process: its places, and what may be between two of them. */
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import type { FabricPlace } from '../../../agent/pipeline/fabric-frames.ts';
import type { FrameBytes } from '../../../agent/pipeline/frame.ts';
import { Ring } from '../../../agent/pipeline/ring.ts';
import type { FromRing, WayNews } from '../../../agent/pipeline/ring-messages.ts';

/** Of frames to the stage behind, and not of those that come. */
export function isOnward(message: FromRing): message is WayNews {
  return (message.type === 'way' || message.type === 'notice') && !message.ring.startsWith('to ');
}

/** One stage's place, and what it told the stage. */
export class Place implements Disposable {
  readonly told: FromRing[] = [];
  readonly ring: Ring;

  constructor(listen: string, next: string, fabrics?: FabricPlace) {
    this.ring = new Ring(listen, next, (message) => this.told.push(message), fabrics);
  }

  /** Frames that came to it. */
  get frames(): FrameBytes[] {
    return this.told.flatMap((message) => (message.type === 'frame' ? [message.frame] : []));
  }

  /** What came of it, without frames and their ways. */
  get turns(): string[] {
    return this.told.flatMap(({ type }) =>
      type === 'frame' || type === 'way' || type === 'notice' ? [] : [type],
    );
  }

  /** What was said of ways that frames take from here. */
  get news(): WayNews[] {
    return this.told.filter(isOnward);
  }

  [Symbol.dispose](): void {
    this.ring.close();
  }
}

/** As an agent between two nodes: it takes each connection, and then sees whether the stage can be reached. */
export class Way implements AsyncDisposable {
  readonly tried_ms: number[] = [];
  /** From the stage before to the one behind. */
  bytes = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor(listen: string, to: string) {
    this.#server = createServer({ pauseOnConnect: true }, (socket) => {
      this.tried_ms.push(performance.now());
      const onward = createConnection(to);
      for (const [end, other] of [
        [socket, onward],
        [onward, socket],
      ] as const) {
        this.#sockets.add(end);
        end.on('error', () => end.destroy());
        end.once('close', () => other.destroy());
      }
      onward.once('connect', () => {
        socket.on('data', (chunk) => {
          this.bytes += chunk.length;
        });
        socket.pipe(onward);
        onward.pipe(socket);
      });
    });
    this.#server.listen(listen);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
