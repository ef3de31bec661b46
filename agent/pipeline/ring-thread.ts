/** Entry of the thread that has a stage's connections, so that frames come and go while the stage computes. */
import { workerData } from 'node:worker_threads';
import { Ring } from './ring.ts';
import type { FromRing, RingThreadData, ToRing } from './ring-messages.ts';

const { port, signal, listen, next, fabrics } = workerData as RingThreadData;
const tell = (message: FromRing): void => {
  port.postMessage(message, message.type === 'frame' ? [message.frame.buffer] : []);
  Atomics.add(signal, 0, 1);
  Atomics.notify(signal, 0);
};
const ring = new Ring(listen, next, tell, fabrics);
port.on('message', (message: ToRing) => {
  if (message.type === 'frame') {
    ring.send(message.frame);
    return;
  }
  ring.close();
  port.close();
});
