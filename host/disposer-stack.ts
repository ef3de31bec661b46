/**
 * What was set up, part by part, and how each part ends. They end in exactly the reverse order, once, however often and
 * by whom that is asked: a start that fails in the middle and an end in order go the same way.
 *
 * ```
 *   add(a) ─ add(b) ─ add(c) ─► dispose(): c ends, then b, then a
 * ```
 *
 * A part that cannot be ended keeps no other from it. Node 20 has no `AsyncDisposableStack`.
 */
export class DisposerStack {
  readonly #disposers: (() => unknown)[] = [];
  #disposed: Promise<void> | undefined;

  /** @returns the part */
  add<T>(part: T, dispose: (part: T) => unknown): T {
    this.#disposers.push(() => dispose(part));
    return part;
  }

  /** @throws what the only part threw that could not be ended, or an AggregateError of several */
  dispose(): Promise<void> {
    this.#disposed ??= this.#disposeAll();
    return this.#disposed;
  }

  async #disposeAll(): Promise<void> {
    const errors: unknown[] = [];
    for (let dispose = this.#disposers.pop(); dispose; dispose = this.#disposers.pop()) {
      try {
        await dispose();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length === 1) throw errors[0];
    if (errors.length > 1) throw new AggregateError(errors, `${errors.length} parts could not be ended`);
  }
}
