/**
 * Models that gave way to others while nobody asked for them (LLM-Mesh §4, Tangram §3.1): their engine is closed, their
 * tensors stay in the pool until the room is needed, and the next request brings them back.
 */
import type { Submission } from './messages.ts';
import type { LoadMessage } from './model-loads.ts';

interface Resting {
  /** How it is loaded again, with what is known of its speed. */
  message: LoadMessage;
  /** It is on its way back, whether or not those that asked for it are still there. */
  comes: boolean;
  /** Requests that wait for it. */
  waiting: Submission[];
}

export class SuspendedModels {
  private readonly models = new Map<string, Resting>();

  /** By name. */
  get names(): string[] {
    return [...this.models.keys()].sort();
  }

  has(name: string): boolean {
    return this.models.has(name);
  }

  rest(message: LoadMessage): void {
    this.models.set(message.name, { message, comes: false, waiting: [] });
  }

  /**
   * A request for a model that may rest.
   * @returns how to load it, where nobody has asked for it yet; `waits` where it is on its way; undefined: it does not rest
   */
  ask(submission: Submission): LoadMessage | 'waits' | undefined {
    const resting = this.models.get(submission.model);
    if (!resting) return undefined;
    resting.waiting.push(submission);
    if (resting.comes) return 'waits';
    resting.comes = true;
    return resting.message;
  }

  /** The client of a request is gone. */
  cancel(model: string, id: number): void {
    const resting = this.models.get(model);
    if (resting) resting.waiting = resting.waiting.filter((submission) => submission.id !== id);
  }

  /** It is there again, or not wanted any more. @returns the requests that waited for it */
  end(model: string): Submission[] {
    const resting = this.models.get(model);
    this.models.delete(model);
    return resting?.waiting ?? [];
  }

  /** It could not come back now. @returns the requests that waited for it; undefined where it did not rest */
  turnAway(model: string): Submission[] | undefined {
    const resting = this.models.get(model);
    if (!resting) return undefined;
    resting.comes = false;
    return resting.waiting.splice(0);
  }
}
