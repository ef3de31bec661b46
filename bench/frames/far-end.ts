/** Child process of the bench: takes frames and answers each with a short one, by a ring or by a socket alone. */
import { createServer } from 'node:net';
import type { FabricPlace } from '../../agent/pipeline/fabric-frames.ts';
import { encodeJsonFrame } from '../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../agent/pipeline/frame-assembler.ts';
import { Ring } from '../../agent/pipeline/ring.ts';
import type { FromRing } from '../../agent/pipeline/ring-messages.ts';

export interface FarEnd {
  way: 'ring' | 'socket';
  /** Where it listens, and where the other end of a ring does. */
  listen: string;
  next: string;
  /** Of a ring between nodes. */
  fabrics?: FabricPlace | undefined;
}

const taken = encodeJsonFrame({ kind: 'result', epoch: 1, number: 1 }, null);

process.on('message', (message: FarEnd | 'cpu') => {
  if (message === 'cpu') {
    process.send!(process.cpuUsage());
    return;
  }
  const { way, listen, next, fabrics } = message;
  if (way === 'ring') {
    const told = ({ type }: FromRing): void => {
      if (type === 'frame') ring.send(taken);
    };
    const ring = new Ring(listen, next, told, fabrics);
    return;
  }
  createServer((socket) => {
    const assembler = new FrameAssembler();
    socket.on('data', (chunk) => assembler.take(chunk, () => socket.write(taken)));
  }).listen(listen);
});
