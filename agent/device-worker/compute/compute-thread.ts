import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { FromCompute, ToCompute } from './messages.ts';

/** The main thread's end of the compute thread. */
export class ComputeThread {
  private readonly worker: Worker;
  private readonly port: MessagePort;
  private readonly signal = new Int32Array(new SharedArrayBuffer(4));
  private stopping = false;
  readonly ended: Promise<void>;

  /**
   * @param receive is called for each message, in order
   * @param failed is called once where the thread ends without being told to
   * @param step_ms_min see `ComputeLoop`
   */
  constructor(
    receive: (message: FromCompute) => void,
    failed: (error: HpcserveError) => void,
    step_ms_min: number,
  ) {
    const { port1, port2 } = new MessageChannel();
    this.port = port1;
    this.port.on('message', receive);
    const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
    this.worker = new Worker(new URL(`./main.${extension}`, import.meta.url), {
      workerData: { port: port2, signal: this.signal, step_ms_min },
      transferList: [port2],
    });
    this.ended = new Promise((resolve) => {
      let cause: unknown;
      this.worker.on('error', (error) => {
        cause = error;
      });
      this.worker.on('exit', (code) => {
        resolve();
        if (this.stopping) return;
        failed(
          new HpcserveError('E_WORKER_COMPUTE', {
            what: `the compute thread ended with exit code ${code}`,
            because: cause instanceof Error ? (cause.stack ?? cause.message) : 'it was not told to end',
            cause,
          }),
        );
      });
    });
  }

  send(message: ToCompute): void {
    this.port.postMessage(message);
    Atomics.add(this.signal, 0, 1);
    Atomics.notify(this.signal, 0);
  }

  /** Ends after the iteration that runs now. */
  async stop(): Promise<void> {
    this.stopping = true;
    this.send({ type: 'stop' });
    await this.ended;
    this.port.close();
  }
}
