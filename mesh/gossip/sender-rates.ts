import type { PeerName } from './messages.ts';
import type { GossipSettings } from './settings.ts';

/** Senders that are counted at a time. */
const senders_max = 4096;

/** Messages a second of each sender. */
export class SenderRates {
  readonly #settings: Pick<GossipSettings, 'messages_per_s' | 'announcements_per_s'>;
  readonly #senders = new Map<PeerName, { second: number; messages: number; announcements: number }>();

  constructor(settings: Pick<GossipSettings, 'messages_per_s' | 'announcements_per_s'>) {
    this.#settings = settings;
  }

  /** Whether this one is above what a sender may send. */
  floods(from: PeerName, now_ms: number, kind: 'messages' | 'announcements'): boolean {
    const second = Math.floor(now_ms / 1000);
    let sender = this.#senders.get(from);
    if (sender?.second !== second) {
      if (this.#senders.size > senders_max) this.#senders.clear();
      sender = { second, messages: 0, announcements: 0 };
      this.#senders.set(from, sender);
    }
    const { messages_per_s, announcements_per_s } = this.#settings;
    return ++sender[kind] > (kind === 'messages' ? messages_per_s : announcements_per_s);
  }
}
