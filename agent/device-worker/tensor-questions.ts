import type { PooledTensors } from '../memory/peers/shared-tensors.ts';
import type { TensorsAsk, TensorsTold, ToCompute } from './compute/messages.ts';
import { Questions } from './questions.ts';

/** What lies in the pool, as the compute thread says it, for peers. */
export class TensorQuestions extends Questions<TensorsTold> implements PooledTensors {
  readonly #send: (message: ToCompute) => void;

  constructor(send: (message: ToCompute) => void) {
    super();
    this.#send = send;
  }

  async held(contents: readonly string[]): Promise<number[]> {
    const told = await this.#askOf({ contents });
    return 'held' in told ? told.held : [];
  }

  async read(range: Parameters<PooledTensors['read']>[0]): Promise<Uint8Array | undefined> {
    const told = await this.#askOf({ range });
    return 'bytes' in told ? told.bytes : undefined;
  }

  #askOf(asked: TensorsAsk): Promise<TensorsTold> {
    return this.ask((number) => this.#send({ type: 'tensors', ask: number, asked }));
  }
}
