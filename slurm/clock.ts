/** Time, so that tests can turn it by hand. */
export interface Clock {
  now_ms(): number;
  /** Calls `action` once after `delay_ms`; the returned function calls it off. */
  after(delay_ms: number, action: () => void): () => void;
}

export const systemClock: Clock = {
  now_ms: () => Date.now(),
  after(delay_ms, action) {
    const timer = setTimeout(action, delay_ms);
    return () => clearTimeout(timer);
  },
};
