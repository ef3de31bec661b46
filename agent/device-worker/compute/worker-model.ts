import type { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import type { HostedEngine } from './hosted-engine.ts';
import type { LoadMessage, Submission } from './messages.ts';
import type { ProfileMeasurement } from './profile-measurement.ts';

/** How a model is loaded: what the main thread asked for, and what was learned of it here since. */
export type { LoadMessage } from './messages.ts';

/** Weights on their way. */
export interface Opening {
  /** @returns the engine, once its weights are there; then, and where it throws, the opening is over */
  advance(help: boolean): Engine | undefined;
  abort(): void;
  /** Nothing of it is to be done here before others have come; absent: it never waits. */
  readonly isWaiting?: boolean;
}

/** A measurement under way; see `ModelProfiler`. */
export interface Profiling {
  readonly engine: Engine;
  readonly measurement: ProfileMeasurement;
  readonly began_ms: number;
  /** How long its next iteration will take. */
  expected_ms: number;
  /** Since when that waits. */
  waits_since_ms: number;
}

/** What only a model that serves has. */
interface Serving {
  hosted: HostedEngine;
  /** Takes its place in the schedule back. */
  leaveSchedule: () => void;
}

/** Requests that a suspended model came back for, and that wait for it; undefined where it was not suspended. */
type Asked = Submission[] | undefined;

type State =
  | { is: 'loading'; opening: Opening | undefined; queued: number | undefined; asked: Asked }
  | { is: 'profiling'; profiling: Profiling; asked: Asked }
  | ({ is: 'serving' } & Serving)
  | { is: 'suspended' }
  | { is: 'failed' };

export type WorkerModelState = State['is'];

/**
 * One model of a device worker as its compute thread has it: all that belongs to it lies in its state, and goes with
 * it.
 *
 *                   profile, where its speed is unknown
 *     new ──► loading ───────────────────────► profiling
 *             ▲ ▲  │ │ ◄────────────────────────  │   reopen: no room to measure in
 *     resume  │ │  │ └─────────► serving ◄────────┘   serve: its speed is known
 *             │ │  │ keepAway     │   │
 *     suspended ◄──┴──────────────┘   │               suspend: nobody asks for it, and it gives way
 *               │                     ▼
 *               └────────────────── failed            fail: from loading, profiling and serving
 *                reload: asked for anew
 *
 * `ModelLoads` moves it while it loads (open, queue), `ModelProfiler` measures it, and `ModelLifecycle` decides the
 * rest. An unload disposes of it in any state. What a state does not allow is an error of this program, and throws.
 */
export class WorkerModel {
  readonly name: string;
  /** S of Tangram: what its weights take in the pool; undefined until it served once. */
  weight_bytes: number | undefined;
  #message: LoadMessage;
  #state: State = { is: 'loading', opening: undefined, queued: undefined, asked: undefined };

  constructor(message: LoadMessage) {
    this.name = message.name;
    this.#message = message;
  }

  get message(): LoadMessage {
    return this.#message;
  }

  get state(): WorkerModelState {
    return this.#state.is;
  }

  /** Its engine; undefined unless it serves. */
  get hosted(): HostedEngine | undefined {
    return this.#state.is === 'serving' ? this.#state.hosted : undefined;
  }

  get profiling(): Profiling | undefined {
    return this.#state.is === 'profiling' ? this.#state.profiling : undefined;
  }

  /** Its weights are on their way. */
  get isOpening(): boolean {
    return this.#state.is === 'loading' && this.#state.opening !== undefined;
  }

  /** What is on its way of it is on other devices. */
  get isWaiting(): boolean {
    return this.#state.is === 'loading' && this.#state.opening?.isWaiting === true;
  }

  /** Its place among those that wait until others have come; undefined where it does not wait. */
  get queued(): number | undefined {
    return this.#state.is === 'loading' ? this.#state.queued : undefined;
  }

  /** It gave way to others and does not serve again yet: it is suspended, or on its way back. */
  get isAway(): boolean {
    const state = this.#state;
    return state.is === 'suspended' || ('asked' in state && state.asked !== undefined);
  }

  /** loading: its weights set out. */
  open(opening: Opening): void {
    const state = this.#loading('opened');
    if (state.opening) throw new Error(`the model ${this.name} is being opened already`);
    state.opening = opening;
    state.queued = undefined;
  }

  /** loading: it did not fit, and begins again once others have come. @param place those with a lower one go first */
  queue(place: number): void {
    this.#loading('queued').queued = place;
  }

  /**
   * loading: its weights come on. @returns its engine once they are there: the caller's, until it profiles or serves
   */
  advance(help: boolean): Engine | undefined {
    const state = this.#loading('loaded');
    const { opening } = state;
    if (!opening) throw new Error(`the model ${this.name} was not opened`);
    // Over as soon as it throws or has ended.
    state.opening = undefined;
    const engine = opening.advance(help);
    if (!engine) state.opening = opening;
    return engine;
  }

  /** loading → profiling: the engine is the model's from now on. */
  profile(profiling: Profiling): void {
    const { asked } = this.#loading('measured');
    this.#state = { is: 'profiling', profiling, asked };
  }

  /** profiling → loading: its measurement ended without a profile; its engine is closed. */
  reopen(): void {
    const state = this.#state;
    if (state.is !== 'profiling') throw this.#refused('opened again');
    this.#release();
    this.#state = { is: 'loading', opening: undefined, queued: undefined, asked: state.asked };
  }

  /** loading, profiling → serving: the engine is the model's. @returns the requests that wait for it */
  serve(serving: Serving): Submission[] {
    const state = this.#state;
    if (state.is !== 'loading' && state.is !== 'profiling') throw this.#refused('served');
    this.#state = { is: 'serving', ...serving };
    return state.asked ?? [];
  }

  /** serving: it is not any more what it was loaded as; where it comes back, it does as what it is now. */
  change(message: LoadMessage): void {
    if (this.#state.is !== 'serving') throw this.#refused('changed');
    this.#message = message;
  }

  /** serving → suspended: its engine is closed; what was learned of it is known when it comes back. */
  suspend(learned: Partial<Pick<LoadMessage, 'profile' | 'lengths'>> = {}): void {
    if (this.#state.is !== 'serving') throw this.#refused('suspended');
    this.#message = { ...this.#message, ...learned };
    this.#enter({ is: 'suspended' });
  }

  /**
   * suspended → loading: a request asks for it, as others may have done before.
   * @param submission absent: its stages are to change
   * @returns whether it is the first: then the model is to be opened
   */
  resume(submission?: Submission): boolean {
    const state = this.#state;
    const asked = submission ? [submission] : [];
    if (state.is === 'suspended') {
      this.#state = { is: 'loading', opening: undefined, queued: undefined, asked };
      return true;
    }
    if (!('asked' in state) || !state.asked) throw this.#refused('resumed');
    state.asked.push(...asked);
    return false;
  }

  /** The client of a request is gone; its model comes back all the same. */
  withdraw(id: number): void {
    const state = this.#state;
    if ('asked' in state && state.asked)
      state.asked = state.asked.filter((submission) => submission.id !== id);
  }

  /** loading → suspended: there is no room for it to come back now. @returns the requests that wait for it */
  keepAway(): Submission[] {
    const { asked } = this.#loading('kept away');
    if (!asked) throw this.#refused('kept away');
    this.#enter({ is: 'suspended' });
    return asked;
  }

  /** loading, profiling, serving → failed: its engine is closed. @returns the requests that wait for it */
  fail(): Submission[] {
    const state = this.#state;
    if (state.is === 'suspended' || state.is === 'failed') throw this.#refused('failed');
    this.#enter({ is: 'failed' });
    return 'asked' in state ? (state.asked ?? []) : [];
  }

  /** failed → loading. */
  reload(message: LoadMessage): void {
    if (this.#state.is !== 'failed') throw this.#refused('loaded again');
    this.#message = message;
    this.#state = { is: 'loading', opening: undefined, queued: undefined, asked: undefined };
  }

  /** Any state, and the last of it: nothing of the model is left but its tensors in the pool. */
  dispose(): void {
    this.#enter({ is: 'failed' });
  }

  /** Gives up what the present state holds; the next one is there even where that throws. */
  #enter(next: State): void {
    try {
      this.#release();
    } finally {
      this.#state = next;
    }
  }

  #release(): void {
    const state = this.#state;
    switch (state.is) {
      case 'loading':
        state.opening?.abort();
        return;
      case 'profiling':
        state.profiling.measurement.return(undefined as unknown as GrowingProfile);
        state.profiling.engine.close();
        return;
      case 'serving':
        // Its memory first: others are tried again as it leaves the schedule.
        try {
          state.hosted.close();
        } finally {
          state.leaveSchedule();
        }
        return;
      case 'suspended':
      case 'failed':
    }
  }

  #loading(wanted: string): State & { is: 'loading' } {
    if (this.#state.is !== 'loading') throw this.#refused(wanted);
    return this.#state;
  }

  #refused(wanted: string): Error {
    return new Error(`the model ${this.name} is ${this.#state.is} and cannot be ${wanted}`);
  }
}
