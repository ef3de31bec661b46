import type { DecodePeer } from '../../../solver/disaggregation/handover.ts';
import { LinkPace } from '../../../solver/disaggregation/pace.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { SentKv } from '../../transfer/kv-source.ts';
import type { AgentPeers, ListedPeer } from './agent-peers.ts';

/** What peers said of their room is taken for so long. Lower: it is truer; higher: they are asked less often. */
const rooms_for_ms = 200;
/** A peer that does not say what room it has in so long is counted on for nothing. */
const room_ms = 1000;

interface Known {
  asked_ms: number;
  peers: Promise<(DecodePeer & { listed: ListedPeer })[]>;
}

/** The replicas of decode pools that answers may go on at: what room they have, and how fast the way to them is. */
export class DecodePeers {
  readonly #agent: AgentPeers;
  readonly #warn: (notice: HpcserveError) => void;
  /** By model. */
  readonly #known = new Map<string, Known>();
  /** By session. */
  readonly #links = new Map<string, LinkPace>();

  constructor(agent: AgentPeers, warn: (notice: HpcserveError) => void) {
    this.#agent = agent;
    this.#warn = warn;
  }

  /** Those that said what room they have; it may be a moment old. @throws Error: the agent does not answer */
  async of(model: string): Promise<readonly (DecodePeer & { listed: ListedPeer })[]> {
    const now_ms = performance.now();
    let known = this.#known.get(model);
    if (known === undefined || now_ms - known.asked_ms > rooms_for_ms) {
      known = { asked_ms: now_ms, peers: this.#ask(model) };
      this.#known.set(model, known);
    }
    const peers = await known.peers;
    for (const peer of peers) Object.assign(peer, this.#linkOf(peer.id).link(performance.now() / 1000));
    return peers;
  }

  /** An answer is about to go there: others see less room until it is asked again. */
  take(peer: DecodePeer, tokens: number): void {
    peer.places--;
    peer.kv_tokens -= tokens;
  }

  sent(session_id: string, { bytes, elapsed_ms }: SentKv): void {
    this.#linkOf(session_id).observe(bytes, elapsed_ms / 1000, performance.now() / 1000);
  }

  async #ask(model: string): Promise<(DecodePeer & { listed: ListedPeer })[]> {
    const listed = (await this.#agent.list(new Set([model]))).filter(({ decodes }) =>
      decodes.includes(model),
    );
    const told = await Promise.all(listed.map((peer) => this.#roomAt(peer, model)));
    return told.flat();
  }

  async #roomAt(listed: ListedPeer, model: string): Promise<(DecodePeer & { listed: ListedPeer })[]> {
    const { session_id: id } = listed;
    try {
      const { places, kv_tokens, step_ms } = await this.#agent.roomAt(listed, model, room_ms);
      const step_s = step_ms === undefined ? undefined : step_ms / 1000;
      return [{ id, places, kv_tokens, step_s, ...this.#linkOf(id).link(performance.now() / 1000), listed }];
    } catch (error) {
      this.#warn(HpcserveError.from(error));
      return [];
    }
  }

  #linkOf(session_id: string): LinkPace {
    let link = this.#links.get(session_id);
    if (!link) {
      link = new LinkPace();
      this.#links.set(session_id, link);
    }
    return link;
  }
}
