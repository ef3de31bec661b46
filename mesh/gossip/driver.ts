import type { SessionTable } from '../session-table.ts';
import type { Clock, MeshTransport } from '../transport.ts';
import type { GossipMember } from './member.ts';
import { everyone, type Outgoing } from './messages.ts';

/**
 * Lets a member live: brings it messages and time, and sends what it says. The same for real members and simulated
 * ones.
 */
export class GossipDriver {
  readonly member: GossipMember;
  readonly transport: MeshTransport;
  readonly #clock: Clock;
  readonly #unsubscribe: () => void;
  #wakes_at_ms = Number.POSITIVE_INFINITY;
  #cancel: () => void = () => undefined;
  #ring_version = -1;
  #closed = false;

  constructor(member: GossipMember, table: SessionTable, transport: MeshTransport, clock: Clock) {
    this.member = member;
    this.transport = transport;
    this.#clock = clock;
    transport.listen({
      message: (from, message) => {
        this.#send(member.receive(from, message));
        this.#wake();
      },
      announcement: (from, message) => {
        const isNew = member.hear(from, message);
        this.#wake();
        return isNew;
      },
      lost: (peer) => {
        this.#send(member.lost(peer));
        this.#wake();
      },
    });
    this.#unsubscribe = table.onStep(() => this.#wake());
    this.#wake();
  }

  /** First contact by address. @throws Error where nobody of this mesh answers there */
  async dial(address: string): Promise<void> {
    const peer = await this.transport.dial(address);
    if (!this.#closed) this.#send(this.member.greet(peer));
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#unsubscribe();
    this.#cancel();
    await this.transport.close();
  }

  /** Says what is still to be said, such as that the own sessions left. */
  flush(): void {
    this.#send(this.member.flush());
  }

  #tick(): void {
    this.#wakes_at_ms = Number.POSITIVE_INFINITY;
    this.#send(this.member.tick());
    if (this.#ring_version !== this.member.ring.version) {
      this.#ring_version = this.member.ring.version;
      this.transport.keep(this.member.links());
    }
    this.#wake();
  }

  #wake(): void {
    if (this.#closed) return;
    const at_ms = this.member.nextTick_ms();
    if (at_ms >= this.#wakes_at_ms) return;
    this.#cancel();
    this.#wakes_at_ms = at_ms;
    this.#cancel = this.#clock.at(at_ms, () => this.#tick());
  }

  #send(outgoing: readonly Outgoing[]): void {
    for (const { to, message } of outgoing) {
      if (to === everyone) this.transport.announce(message);
      else this.transport.send(to, message);
    }
  }
}
