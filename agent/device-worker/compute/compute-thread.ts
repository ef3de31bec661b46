import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { compiledFile } from '../../../host/programs.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { FabricPlace } from '../../pipeline/fabric-frames.ts';
import { streamingThreads } from '../../streaming/streamed-models.ts';
import type { ComputeThreadData, DeviceFailed, FromCompute, ParkingFolder, ToCompute } from './messages.ts';
import { ComputeWatchdog, pulse, watch_ms } from './watchdog.ts';

export interface ComputeThreadOptions {
  /** See `ComputeLoop`. */
  settings: SharingSettings;
  step_ms_min: number;
  /** See `ComputeWatchdog`. */
  stall_ms: number;
  /** Of the device's memory pool. */
  threads: number;
  pool_bytes: number;
  /** Of the pool, what weights are streamed through; absent: none are. */
  arena_bytes?: number | undefined;
  /** The same, for layers of such models that stay. */
  resident_bytes?: number | undefined;
  /** What the plan counted on beside both; absent: nothing is known of it. */
  beside_bytes?: number | undefined;
  /** Where hashes of tensors are kept. */
  hash_dir?: string;
  /** See `TensorLoaderOptions`. */
  peers_socket?: string;
  /** What computes, as ggml names it; absent: the CPU. */
  ggml_device: string | undefined;
  /** Absent: KV of requests that give way waits in host memory alone. */
  parking?: ParkingFolder | undefined;
  /** See `RingThreadData`. */
  fabrics?: FabricPlace | undefined;
}

/** The main thread's end of the compute thread. */
export class ComputeThread {
  readonly #worker: Worker;
  readonly #port: MessagePort;
  readonly #receive: (message: FromCompute) => void;
  readonly #failed: (error: HpcserveError) => void;
  readonly #pulse = new Int32Array(new SharedArrayBuffer(4 * pulse.words));
  readonly #watch: NodeJS.Timeout;
  #stopping = false;
  readonly ended: Promise<void>;

  /**
   * @param receive is called for each message, in order
   * @param failed is called once where the thread ends without being told to, or is stuck
   */
  constructor(
    receive: (message: FromCompute) => void,
    failed: (error: HpcserveError) => void,
    options: ComputeThreadOptions,
  ) {
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    this.#receive = receive;
    this.#failed = failed;
    this.#port.on('message', (message: FromCompute | DeviceFailed) => {
      if (message.type === 'device_failed') this.#deviceFailed(HpcserveError.fromJSON(message.error));
      else receive(message);
    });
    this.#worker = this.#start(port2, options);
    this.#watch = this.#watchOver(options.stall_ms);
    this.ended = this.#untilEnded();
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

  /** The thread ends by itself. */
  #deviceFailed(error: HpcserveError): void {
    this.#stopping = true;
    clearInterval(this.#watch);
    this.#failed(error);
  }

  #start(port: MessagePort, options: ComputeThreadOptions): Worker {
    const { settings, step_ms_min, threads, pool_bytes, hash_dir, peers_socket, ggml_device } = options;
    const { arena_bytes, resident_bytes = 0, beside_bytes, parking, fabrics } = options;
    const pool: ComputeThreadData['pool'] = { threads, pool_bytes };
    if (peers_socket !== undefined) pool.peers_socket = peers_socket;
    const data: ComputeThreadData = { port, pulse: this.#pulse, settings, step_ms_min, pool };
    if (hash_dir !== undefined) data.hash_dir = hash_dir;
    if (ggml_device !== undefined) data.ggml_device = ggml_device;
    if (parking) data.parking = parking;
    if (fabrics) data.fabrics = fabrics;
    if (arena_bytes !== undefined)
      data.streaming = {
        arena_bytes,
        resident_bytes,
        beside_bytes,
        ...streamingThreads(threads, ggml_device === undefined),
      };
    return new Worker(compiledFile('agent/device-worker/compute/main.js'), {
      workerData: data,
      transferList: [port],
      // Memory files are opened by foreign code, which Node does not see, and closed here.
      trackUnmanagedFds: false,
    });
  }

  #watchOver(stall_ms: number): NodeJS.Timeout {
    const watchdog = new ComputeWatchdog(stall_ms);
    const watch = setInterval(() => {
      const beats = Atomics.load(this.#pulse, pulse.beats);
      const stuck_s = watchdog.tick(beats, Atomics.load(this.#pulse, pulse.state));
      if (stuck_s === undefined || this.#stopping) return;
      clearInterval(watch);
      this.#failed(
        new HpcserveError('E_WORKER_STUCK', {
          what: `the compute thread has been stuck for ${stuck_s} s`,
          because: 'what it does takes far longer than it ever did: its device, driver or filesystem hangs',
        }),
      );
    }, watch_ms);
    return watch.unref();
  }

  #untilEnded(): Promise<void> {
    return new Promise((resolve) => {
      let cause: unknown;
      this.#worker.on('error', (error) => {
        cause = error;
      });
      this.#worker.on('exit', (code) => {
        resolve();
        clearInterval(this.#watch);
        if (this.#stopping) return;
        this.#failed(
          new HpcserveError('E_WORKER_COMPUTE', {
            what: `the compute thread ended with exit code ${code}`,
            because: cause instanceof Error ? (cause.stack ?? cause.message) : 'it was not told to end',
            cause,
          }),
        );
      });
    });
  }
}
