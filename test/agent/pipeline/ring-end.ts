/**
 * Child process of `fabric-frames.test.ts`: a place in a ring that sends every frame on as it came. Its argument is a
 * `RingEnd`; what is not a frame is told on stdout, a line each.
 */
import type { FabricPlace } from '../../../agent/pipeline/fabric-frames.ts';
import { Ring } from '../../../agent/pipeline/ring.ts';

export interface RingEnd {
  listen: string;
  next: string;
  fabrics: FabricPlace;
}

const { listen, next, fabrics } = JSON.parse(process.argv[2]!) as RingEnd;
const ring = new Ring(
  listen,
  next,
  (message) => {
    if (message.type === 'frame') ring.send(message.frame);
    else console.log(JSON.stringify(message));
  },
  fabrics,
);
