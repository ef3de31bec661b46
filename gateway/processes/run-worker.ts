/** A worker of a gateway as a process: a child of the primary, which tells it all that it goes by. */
import type { SendHandle } from 'node:child_process';
import { Socket } from 'node:net';
import type { HeldName } from '../holder/messages.ts';
import type { GatewayLog } from '../log.ts';
import { MessagePipe } from './message-pipe.ts';
import { type FromPrimary, type ToPrimary, workerPipes } from './messages.ts';
import { Worker } from './worker.ts';

/** Exit code of a worker whose primary is gone. */
const left = 10;

/**
 * Runs until the primary says otherwise, or is gone: then nobody counts what is asked here, and whoever is connected
 * has to find another gateway, so it ends in that moment.
 */
export function runWorker(log: GatewayLog): void {
  const orphaned = (): never => process.exit(left);
  let worker: Worker | undefined;
  const pipe = new MessagePipe<FromPrimary, ToPrimary>(pipeAt(workerPipes.messages), {
    message: (message) => {
      if (message[0] === 'start') worker = new Worker(message[1], { pipe, requests, log });
      else if (message[0] === 'drain') void end(worker!, pipe);
      else worker!.take(message);
    },
    closed: orphaned,
  });
  const requests = pipeAt(workerPipes.requests);
  process.on('disconnect', orphaned);
  process.on('message', ({ name }: { name: HeldName }, socket: SendHandle | undefined) => {
    pipe.post(['connected']);
    // Of a client that has gone since, there is no connection any more.
    if (socket instanceof Socket) worker!.connected(name, socket);
    else worker!.gone();
  });
  // What ends the gateway comes to all of its processes at once, and the primary ends this one in order.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGUSR1'] as const) process.on(signal, () => undefined);
}

async function end(worker: Worker, pipe: MessagePipe<FromPrimary, ToPrimary>): Promise<void> {
  await worker.drain();
  await pipe.end();
  process.exit(0);
}

function pipeAt(fd: number): Socket {
  return new Socket({ fd, readable: true, writable: true });
}
