export interface GossipSettings {
  /** How long news is gathered before it is told to all. Lower: sooner by as much; higher: fewer messages when much happens at once. */
  broadcast_batch_ms: number;
  /** Time between signs of life. Lower: silence is seen sooner; a member sends `watchers` of them each time. */
  heartbeat_interval_ms: number;
  /** Time between signs of life to gateways, which show load. Higher: less to read where thousands of members send to a few gateways. */
  load_ms: number;
  /** Members that watch over a member: the next ones on the ring of names. Higher: safer against lost ones. */
  watchers: number;
  /**
   * Silence after which a watcher asks, how long it waits for an answer, and how much longer the second and the third
   * watcher wait, so that mostly one speaks. Until all know of a death: at most
   * silence + check + (watchers − 1) · stagger + the way of the news.
   */
  suspicion_timeout_ms: number;
  probe_timeout_ms: number;
  stagger_ms: number;
  /** Silence that is allowed to a member that this one never heard: it may be just beginning. Lower: those who died before anybody heard them are found sooner. */
  unheard_ms: number;
  /** Members that are asked to ask too. A false alarm needs all ways to fail: loss^2 directly, loss^4 each way around. */
  indirect_probes: number;
  /** Time between two comparisons with another member: what news missed is found so. */
  push_pull_interval_ms: number;
  /** The same after one that found a difference. Lower: what much news at once has missed is found sooner; more comparisons while members come and go. */
  push_pull_soon_ms: number;
  /** Share of comparisons with members that are thought to have left: this is how the halves of a partition meet again. */
  compare_with_left: number;
  /** Of the others, the share with any member instead of one that is linked anyway. Higher: more connections. */
  compare_far: number;
  /** How long a member that others say is gone has to answer. Until all know of a death, this comes on top of the sum above. Lower: sooner; higher: fewer are taken for gone that are only slow, until they show that they live. */
  claim_check_ms: number;
  /** Least time between two looks at a member that others say is gone. Lower: more messages while somebody says so without end; higher: a true loss right after a false claim is believed later. */
  claim_again_ms: number;
  /** Such members that are looked at in one go, and a second. Lower: the loss of many at once is believed later; higher: more messages and connections while somebody says it of all. */
  claim_burst: number;
  claims_per_s: number;
  /** Least time between two records by which a session shows that it lives. Lower: seen alive again sooner; higher: less news while somebody says that it is gone. */
  refute_ms: number;
  /** Entries, and bytes of their envelopes, in one message at most; larger ones do not count. */
  entries_max: number;
  envelope_bytes_max: number;
  /** Messages a second that one sender may send; what is above does not count. */
  messages_per_s: number;
  /** The same of what a member passes on to all, which is one of each that comes back where a partition heals. Lower: less to verify; what is above is found by comparison, later. */
  announcements_per_s: number;
}

export const defaultGossipSettings: GossipSettings = {
  broadcast_batch_ms: 20,
  heartbeat_interval_ms: 500,
  load_ms: 2000,
  watchers: 3,
  suspicion_timeout_ms: 1500,
  probe_timeout_ms: 600,
  stagger_ms: 150,
  unheard_ms: 3000,
  indirect_probes: 3,
  push_pull_interval_ms: 2000,
  push_pull_soon_ms: 300,
  compare_with_left: 0.3,
  compare_far: 0.25,
  claim_check_ms: 400,
  claim_again_ms: 1000,
  claim_burst: 1024,
  claims_per_s: 64,
  refute_ms: 2000,
  entries_max: 256,
  envelope_bytes_max: 192 * 1024,
  messages_per_s: 400,
  announcements_per_s: 2000,
};
