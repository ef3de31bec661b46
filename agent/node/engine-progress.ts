/** What an engine does before it serves: its phase, and how much of the weights it has read. */
import { realpathSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { readCharacters, residentOfFiles } from '../../host/process-tree.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { LoadPhase } from '../../spec/session-record.ts';
import type { EngineAdapter } from '../adapters/adapter.ts';
import { phaseSign } from '../adapters/load-phases.ts';
import type { Child } from './child.ts';
import { EngineProcesses } from './engine-processes.ts';

/** Between two looks, ms. Lower: progress is seen sooner; higher: less is read of /proc and of the log. */
const look_ms = 1000;
/** Of the log at once; what is more is read with the next look. */
const read_bytes_max = 256 * 1024;
/** The kernel walks all page tables to say what is mapped: at most such a share of the time is spent on it. */
const mapped_share = 0.02;

export interface PhaseProgress {
  phase: LoadPhase;
  /** Of the weights, while they are read; absent before and where nothing tells. */
  bytes_loaded?: number | undefined;
}

/**
 * Follows the log of an engine, and what its processes read. Weights are read by system calls, which the kernel counts
 * for each process, or mapped: then what is in memory of their files counts. Ranks may read all files each, or a part:
 * the one that has read most tells of the former, the sum of what is mapped of the latter. Where the engine counts
 * shards itself, that is taken where it is more.
 */
export class EngineProgress {
  readonly #child: Child;
  readonly #unit: UnitSpec;
  readonly #engine: EngineAdapter['name'];
  readonly #processes: EngineProcesses;
  readonly #tell: (progress: PhaseProgress) => void;
  #read_bytes = 0;
  #rest = '';
  #phase: LoadPhase = 'starting';
  #bytes = 0;
  /** What each process had read when the weights began. */
  readonly #before = new Map<number, number>();
  #mapped_due_ms = 0;

  constructor(
    child: Child,
    unit: UnitSpec,
    engine: EngineAdapter['name'],
    tell: (progress: PhaseProgress) => void,
  ) {
    this.#child = child;
    this.#unit = unit;
    this.#engine = engine;
    this.#processes = new EngineProcesses(child.pid!, child.detached);
    this.#tell = tell;
  }

  /** Until the signal, or the end of the engine. */
  async follow(signal: AbortSignal): Promise<void> {
    this.#tell({ phase: this.#phase });
    while (this.#child.alive && !signal.aborted) {
      await this.#processes.look();
      this.#readLog();
      if (this.#phase === 'weights') this.#measure();
      this.#tell({
        phase: this.#phase,
        bytes_loaded: this.#phase === 'weights' && this.#bytes > 0 ? this.#bytes : undefined,
      });
      await delay(look_ms, undefined, { signal, ref: false }).catch(() => undefined); // aborted
    }
  }

  #readLog(): void {
    const { log } = this.#child;
    const bytes = log.readBytes(this.#read_bytes, read_bytes_max);
    this.#read_bytes += bytes.length;
    // Bars of progress are redrawn with a carriage return.
    const lines = (this.#rest + bytes.toString('utf8')).split(/[\r\n]/);
    this.#rest = (lines.pop() ?? '').slice(-read_bytes_max);
    for (const line of lines) {
      const sign = phaseSign(this.#engine, line);
      if (!sign) continue;
      if (sign.phase === 'weights' && this.#phase !== 'weights') this.#begin();
      this.#phase = sign.phase;
      this.#raise((sign.share ?? 0) * this.#unit.weight_bytes);
    }
  }

  /** Interpreters read their own files before. */
  #begin(): void {
    for (const pid of this.#processes.pids) this.#before.set(pid, readCharacters(pid));
  }

  #measure(): void {
    const { pids } = this.#processes;
    this.#raise(Math.max(0, ...pids.map((pid) => readCharacters(pid) - (this.#before.get(pid) ?? 0))));
    const began_ms = performance.now();
    if (began_ms < this.#mapped_due_ms) return;
    const path = realpathSync(this.#unit.model_path);
    this.#raise(pids.reduce((sum, pid) => sum + residentOfFiles(pid, path), 0));
    const now_ms = performance.now();
    this.#mapped_due_ms = now_ms + (now_ms - began_ms) / mapped_share;
  }

  #raise(bytes: number): void {
    this.#bytes = Math.round(Math.min(this.#unit.weight_bytes, Math.max(this.#bytes, bytes)));
  }
}
