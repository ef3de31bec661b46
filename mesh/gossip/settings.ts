export interface GossipSettings {
  /** Time between two rounds in which news is passed on. Lower: faster spread, more messages while there is news. */
  round_ms: number;
  /**
   * Members that get the news in a round. With n members and loss p, news reaches all of them in about
   * log(n) / log(1 + fanout · (1 − p)) rounds and two more for the last ones. Higher: fewer rounds, more copies.
   */
  fanout: number;
  /** Rounds for which a member passes on what is new to it. Lower: some may miss it until the next comparison. */
  rounds: number;
  /** Time between signs of life. Lower: silence is seen sooner; a member sends `watchers` of them each time. */
  beat_ms: number;
  /** Members that watch over a session: the next ones on the ring of session ids. Higher: safer against lost ones. */
  watchers: number;
  /** Silence after which a watcher asks, and how long it waits for an answer. Their sum and the spread is how long a death stays unknown. */
  silence_ms: number;
  check_ms: number;
  /** Members that are asked to ask too. An eviction needs all ways to fail: loss^2 directly, loss^4 each way around. */
  helpers: number;
  /** Time between two comparisons with a random member: what news missed is found so. */
  compare_ms: number;
  /** Share of comparisons with members that are thought to have left: this is how the halves of a partition meet again. */
  compare_with_left: number;
  /** How long a session that left is remembered whole; its id is for good, as long as the process lives. */
  forget_ms: number;
  /** Records in one message at most; larger ones do not count. */
  records_max: number;
  /** Messages a second that one sender may send; what is above does not count. */
  messages_per_s: number;
}

export const defaultGossipSettings: GossipSettings = {
  round_ms: 150,
  fanout: 8,
  rounds: 5,
  beat_ms: 500,
  watchers: 3,
  silence_ms: 1200,
  check_ms: 500,
  helpers: 3,
  compare_ms: 2000,
  compare_with_left: 0.3,
  forget_ms: 3_600_000,
  records_max: 2048,
  messages_per_s: 400,
};
