import { type Granularity, passTime_s } from '../granularity/granularity.ts';
import type { PipelineRequest } from './surges.ts';

/** A request on its way, and where its time went. */
export interface ServedRequest extends PipelineRequest {
  passes_left: number;
  /** When it came, or came back from its last pass. */
  since_ms: number;
  /** Before and between passes, in stages, on hops between them. */
  waiting_ms: number;
  computing_ms: number;
  hopping_ms: number;
  done_ms: number;
}

export interface PipelineOptions {
  granularity: Granularity;
  devices: readonly string[];
  /** The slowest device: stages take so many times as long. */
  slowdown: number;
  /** Without micro-batches one batch is in the pipeline at a time. */
  micro_batches: boolean;
}

/**
 * One pipeline instance. Its first stage takes a micro-batch of at most b / η sequences every stage time; a pass
 * takes η stage times and the hops, and as many micro-batches are under way as that holds; at most b sequences are
 * in it. What is computed at once does not change the time of a stage: Table 2 gives one.
 */
export class SimulatedPipeline {
  readonly granularity: Granularity;
  readonly devices: readonly string[];
  readonly #micro_batches: boolean;
  /** When the first stage takes the next micro-batch. */
  free_ms = 0;
  /** Sequences that were let in, those under way among them. */
  sequences = 0;
  /** Micro-batches under way. */
  batches = 0;
  /** Back from a pass, with passes left. */
  ready: ServedRequest[] = [];
  /** Another pipeline goes on with its sequences. */
  successor: SimulatedPipeline | undefined;
  /** Time of all its stages in which they computed. */
  stage_ms = 0;

  constructor({ granularity, devices, slowdown, micro_batches }: PipelineOptions) {
    this.granularity = { ...granularity, stage_s: granularity.stage_s * slowdown };
    this.devices = devices;
    this.#micro_batches = micro_batches;
  }

  get rows(): number {
    return this.granularity.batch_max / this.granularity.stages;
  }

  /**
   * Starts one micro-batch from those that are ready and those that wait; undefined where there is nothing to start.
   * @param slowdown by what else runs on the devices now
   */
  launch(
    now_ms: number,
    waiting: ServedRequest[],
    slowdown: number,
  ): { batch: ServedRequest[]; back_ms: number } | undefined {
    const { stages, hops_s, batch_max } = this.granularity;
    const stage_s = this.granularity.stage_s * slowdown;
    const pass_s = passTime_s({ ...this.granularity, stage_s });
    // More would wait for each other, where those that come back could have been filled up.
    if (this.batches >= Math.floor(pass_s / stage_s)) return undefined;
    const batch = this.ready.splice(0, this.rows);
    while (batch.length < this.rows && this.sequences < batch_max && waiting.length > 0) {
      batch.push(waiting.shift()!);
      this.sequences++;
    }
    if (batch.length === 0) return undefined;
    this.batches++;
    const pass_ms = 1000 * pass_s;
    for (const request of batch) {
      request.waiting_ms += now_ms - request.since_ms;
      request.computing_ms += 1000 * stages * stage_s;
      request.hopping_ms += 1000 * hops_s;
    }
    this.free_ms = now_ms + (this.#micro_batches ? 1000 * stage_s : pass_ms);
    this.stage_ms += 1000 * stages * stage_s;
    return { batch, back_ms: now_ms + pass_ms };
  }

  /** Ends as the pipeline that serves: what it has goes to another, which goes on where its first stage is. */
  handOver(successor: SimulatedPipeline, cutover_ms: number): void {
    this.successor = successor;
    successor.free_ms = Math.max(successor.free_ms, this.free_ms, cutover_ms);
    successor.ready.push(...this.ready);
    successor.sequences += this.sequences;
    this.ready = [];
    this.sequences = 0;
  }

  /** The pipeline that goes on with what this one had. */
  get last(): SimulatedPipeline {
    return this.successor === undefined ? this : this.successor.last;
  }
}
