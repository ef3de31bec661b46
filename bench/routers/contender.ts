/** Where requests of one kind go, and who works for them. */
export interface Target {
  url: string;
  model: string;
  pid: number;
  /** CPU time so far, µs. */
  cpu_us(): number;
}

export interface Contender {
  name: string;
  /** Answers at once, and streams that keep a pace. */
  instant: Target;
  paced: Target;
  /** The same processes as another one, and one more whose CPU time counts, too. */
  cpu_only?: true;
  /** Ends the one with instant answers and starts it again; resolves to the time of that start, ms. */
  restart?: () => Promise<number>;
}
