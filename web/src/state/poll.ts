/** Questions that are asked again and again while somebody looks. */
import { useEffect, useState } from 'preact/hooks';
import { type Ask, ask, askJson, GatewayError } from '../api/client.ts';
import { gatewayAnswered, gatewayFailed } from './connection.ts';
import { signIn } from './sign-in.ts';
import { Store } from './store.ts';

/** What is known of an answer. */
export interface Polled<T> {
  /** The last one that came, also while the gateway is away. */
  data?: T;
  at_ms?: number;
  /** Why the last question brought none. */
  error?: Error;
}

/** Asks once, and lets the page notice whether the gateway answers. */
export async function request<T>(path: string, init: Omit<Ask, 'secret'> = {}): Promise<T> {
  return await noticed((secret) => askJson<T>(path, { ...init, secret }));
}

export async function requestText(path: string): Promise<string> {
  return await noticed(async (secret) => (await ask(path, { secret })).text());
}

async function noticed<T>(question: (secret: string) => Promise<T>): Promise<T> {
  const secret = signIn.value?.secret ?? '';
  try {
    const value = await question(secret);
    gatewayAnswered();
    return value;
  } catch (error) {
    // Of a secret that was rotated meanwhile it says nothing that it is refused.
    if (signIn.value?.secret === secret) gatewayFailed(error);
    throw error;
  }
}

/** One question of the page and its last answer. Nobody looks: nothing is asked. */
export class Poll<T> {
  readonly store = new Store<Polled<T>>({});
  readonly #load: () => Promise<T>;
  readonly #interval_ms: number;
  #users = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asking = false;

  constructor(load: () => Promise<T>, interval_ms: number) {
    this.#load = load;
    this.#interval_ms = interval_ms;
    document.addEventListener('visibilitychange', () => this.#wake());
    signIn.watch(() => {
      this.store.set({});
      this.#wake();
    });
  }

  use(): () => void {
    this.#users++;
    this.#wake();
    return () => {
      this.#users--;
    };
  }

  /** At once, besides the interval. */
  refresh(): void {
    this.#wake();
  }

  #wake(): void {
    clearTimeout(this.#timer);
    void this.#ask();
  }

  async #ask(): Promise<void> {
    if (this.#asking || this.#users === 0 || document.hidden || !signIn.value) return;
    this.#asking = true;
    const asked = signIn.value;
    let refused = false;
    try {
      const data = await this.#load();
      if (signIn.value?.secret === asked.secret) this.store.set({ data, at_ms: Date.now() });
    } catch (thrown) {
      const error = thrown as Error;
      // Who may not see it will not be allowed to by asking again.
      refused = error instanceof GatewayError && error.isFinal;
      const { data, at_ms } = this.store.value;
      if (signIn.value?.secret === asked.secret) this.store.set({ data, at_ms, error } as Polled<T>);
    } finally {
      this.#asking = false;
    }
    if (!refused) this.#timer = setTimeout(() => void this.#ask(), this.#interval_ms);
  }
}

export function usePoll<T>(poll: Poll<T>): Polled<T> {
  const [value, setValue] = useState(poll.store.value);
  useEffect(() => {
    const unwatch = poll.store.watch(() => setValue(poll.store.value));
    setValue(poll.store.value);
    const leave = poll.use();
    return () => {
      leave();
      unwatch();
    };
  }, [poll]);
  return value;
}
