/** A request that waits for its engine to be awake. */
export interface Waking {
  /** Resolves once the request can be passed on. */
  readonly awake: Promise<void>;
  /** Its sender has gone, or it is refused for what it says: it waits no more. Later it does nothing. */
  withdraw(): void;
}
