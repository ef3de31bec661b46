import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { FromCompute, ToCompute } from './messages.ts';
import { ComputeWatchdog, pulse, watch_ms } from './watchdog.ts';

/** The main thread's end of the compute thread. */
export class ComputeThread {
  readonly #worker: Worker;
  readonly #port: MessagePort;
  readonly #receive: (message: FromCompute) => void;
  readonly #pulse = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  readonly #watch: NodeJS.Timeout;
  #stopping = false;
  readonly ended: Promise<void>;

  /**
   * @param receive is called for each message, in order
   * @param failed is called once where the thread ends without being told to, or is stuck
   * @param bounds `settings`, `step_ms_min`: see `ComputeLoop`; `stall_ms`: see `ComputeWatchdog`;
   *   `threads`, `pool_bytes`: of the device's memory pool;
   *   `hash_dir`: where hashes of tensors are kept; `peers_socket`: see `TensorLoaderOptions`
   */
  constructor(
    receive: (message: FromCompute) => void,
    failed: (error: HpcserveError) => void,
    {
      settings,
      step_ms_min,
      stall_ms,
      threads,
      pool_bytes,
      hash_dir,
      peers_socket,
    }: {
      settings: SharingSettings;
      step_ms_min: number;
      stall_ms: number;
      threads: number;
      pool_bytes: number;
      hash_dir?: string;
      peers_socket?: string;
    },
  ) {
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    this.#receive = receive;
    this.#port.on('message', receive);
    const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
    this.#worker = new Worker(new URL(`./main.${extension}`, import.meta.url), {
      workerData: {
        port: port2,
        pulse: this.#pulse,
        settings,
        step_ms_min,
        pool: { threads, pool_bytes, ...(peers_socket !== undefined && { peers_socket }) },
        hash_dir,
      },
      transferList: [port2],
      // Memory files are opened by foreign code, which Node does not see, and closed here.
      trackUnmanagedFds: false,
    });
    const watchdog = new ComputeWatchdog(stall_ms);
    this.#watch = setInterval(() => {
      const beats = Atomics.load(this.#pulse, pulse.beats);
      const stuck_s = watchdog.tick(beats, Atomics.load(this.#pulse, pulse.state));
      if (stuck_s === undefined || this.#stopping) return;
      clearInterval(this.#watch);
      failed(
        new HpcserveError('E_WORKER_STUCK', {
          what: `the compute thread has been stuck for ${stuck_s} s`,
          because: 'what it does takes far longer than it ever did: its device, driver or filesystem hangs',
        }),
      );
    }, watch_ms);
    this.#watch.unref();
    this.ended = new Promise((resolve) => {
      let cause: unknown;
      this.#worker.on('error', (error) => {
        cause = error;
      });
      this.#worker.on('exit', (code) => {
        resolve();
        clearInterval(this.#watch);
        if (this.#stopping) return;
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
    this.#port.postMessage(message);
    Atomics.add(this.#pulse, pulse.signal, 1);
    Atomics.notify(this.#pulse, pulse.signal);
  }

  /** Ends after the iteration that runs now. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.send({ type: 'stop' });
    await this.ended;
    // Its last words may not have been delivered yet: among them is what it learned.
    for (let last = receiveMessageOnPort(this.#port); last; last = receiveMessageOnPort(this.#port))
      this.#receive(last.message as FromCompute);
    this.#port.close();
  }
}
