import type { HostedEngine } from './hosted-engine.ts';
import type { WorkerModel, WorkerModelState } from './worker-model.ts';

/** The models of the compute thread by name, whatever state they are in: the one place where a model is found. */
export class WorkerModels implements Iterable<WorkerModel> {
  readonly #models = new Map<string, WorkerModel>();

  get(name: string): WorkerModel | undefined {
    return this.#models.get(name);
  }

  add(model: WorkerModel): void {
    if (this.#models.has(model.name)) throw new Error(`there is a model ${model.name} already`);
    this.#models.set(model.name, model);
  }

  /** It is disposed of, and not known any more. */
  remove(name: string): void {
    const model = this.#models.get(name);
    this.#models.delete(name);
    model?.dispose();
  }

  [Symbol.iterator](): IterableIterator<WorkerModel> {
    return this.#models.values();
  }

  /** In the order in which they were first loaded; a list of its own, so that they may move meanwhile. */
  in(state: WorkerModelState): WorkerModel[] {
    return [...this].filter((model) => model.state === state);
  }

  has(state: WorkerModelState): boolean {
    for (const model of this) if (model.state === state) return true;
    return false;
  }

  /** Engines of the models that serve. */
  get engines(): HostedEngine[] {
    return [...this].flatMap(({ hosted }) => (hosted ? [hosted] : []));
  }

  /** Names of those that gave way and do not serve again yet, in order. */
  get away(): string[] {
    return [...this].flatMap(({ name, isAway }) => (isAway ? [name] : [])).sort();
  }
}
