/** Questions that were sent to the compute thread, and wait for their answers. */
export class Questions<T> {
  readonly #open = new Map<number, { resolve(answer: T): void; reject(error: Error): void }>();
  #next = 1;

  /** @param send the question, under its number */
  ask(send: (number: number) => void): Promise<T> {
    const number = this.#next++;
    return new Promise((resolve, reject) => {
      this.#open.set(number, { resolve, reject });
      send(number);
    });
  }

  answer(number: number, answer: T): void {
    this.#open.get(number)?.resolve(answer);
    this.#open.delete(number);
  }

  fail(number: number, error: Error): void {
    this.#open.get(number)?.reject(error);
    this.#open.delete(number);
  }

  /** Nobody answers any more. */
  failAll(error: Error): void {
    for (const number of [...this.#open.keys()]) this.fail(number, error);
  }
}
