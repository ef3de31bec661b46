/** Counts the requests of a gateway that wait for a replica to load: each holds its body in memory. */
export class WaitingRoom {
  #free: number;

  /** @param places lower: more are refused while a replica loads; higher: more come at once when it has */
  constructor(places: number) {
    this.#free = places;
  }

  /** @returns what gives the place back, to be called once; undefined where there is none */
  enter(): (() => void) | undefined {
    if (this.#free === 0) return undefined;
    this.#free--;
    return () => {
      this.#free++;
    };
  }
}
