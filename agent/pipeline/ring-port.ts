import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { compiledFile } from '../../host/programs.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { FabricPlace } from './fabric-frames.ts';
import { type FrameBytes, noteChecked } from './frame.ts';
import type { FramePort } from './frame-port.ts';
import type { FromRing, RingThreadData, ToRing, WayNews } from './ring-messages.ts';

/** Threads need compiled JavaScript: Node 20 runs no TypeScript. */
const threadFile = compiledFile('agent/pipeline/ring-thread.js');
/** A look at what else there is to do, while nothing comes. */
const look_ms = 1000;

/** What waits for frames beside its ring. */
export interface RingSurroundings {
  /** See `pulse`: counted up by everyone who has something for the thread that computes. */
  signal: Int32Array;
  /** While a frame is waited for: does what others wait for. @returns whether there was anything */
  meanwhile(): boolean;
  /** See `RingThreadData`. */
  fabrics: FabricPlace | undefined;
  news(news: WayNews): void;
}

/**
 * A stage's place in its ring, for the thread that computes; another thread has the connections. While a coordinator
 * waits for its pipeline, its device serves stages of other pipelines: two that have a stage on each other's device
 * would else wait for each other for ever.
 */
export class RingPort implements FramePort {
  readonly #port: MessagePort;
  readonly #worker: Worker;
  readonly #around: RingSurroundings;
  #isUp = false;
  #came_ms = 0;

  constructor(listen: string, next: string, around: RingSurroundings) {
    const { port1, port2 } = new MessageChannel();
    this.#around = around;
    this.#port = port1;
    const { signal, fabrics } = around;
    const data: RingThreadData = { port: port2, signal, listen, next, fabrics };
    this.#worker = new Worker(threadFile, {
      workerData: data,
      transferList: [port2],
      // Memory files are opened by foreign code, which Node does not see, and closed here.
      trackUnmanagedFds: false,
    });
    this.#worker.unref();
    port1.unref();
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  get came_ms(): number {
    return this.#came_ms;
  }

  poll(): FrameBytes | undefined {
    for (;;) {
      const received = receiveMessageOnPort(this.#port) as { message: FromRing } | undefined;
      if (!received) return undefined;
      const { message } = received;
      if (message.type === 'frame') {
        this.#came_ms = message.came_ms;
        if (message.is_checked) noteChecked(message.frame);
        return message.frame;
      }
      if (message.type === 'way' || message.type === 'notice') {
        this.#around.news(message);
        continue;
      }
      if (message.type === 'foreign') throw HpcserveError.fromJSON(message.error);
      this.#isUp = message.type === 'up';
      if (message.type === 'down')
        throw new HpcserveError('E_STAGE_LOST', { what: 'the pipeline is broken', because: message.because });
    }
  }

  receive(): FrameBytes {
    for (;;) {
      // Read before the frames are: one that comes in between changes the word, and the wait ends at once.
      const seen = Atomics.load(this.#around.signal, 0);
      const frame = this.poll();
      if (frame) return frame;
      if (!this.#around.meanwhile()) Atomics.wait(this.#around.signal, 0, seen, look_ms);
    }
  }

  send(frame: FrameBytes): void {
    this.#post({ type: 'frame', frame });
  }

  close(): void {
    this.#isUp = false;
    this.#post({ type: 'end' });
  }

  #post(message: ToRing): void {
    this.#port.postMessage(message, message.type === 'frame' ? [message.frame.buffer] : []);
  }
}
