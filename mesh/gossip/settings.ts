/**
 * Settings of the gossip, and presets for three kinds of networks, as memberlist has them (hashicorp/memberlist,
 * config.go).
 *
 * ```
 *                 last heartbeat        probe            tombstone            claim probe
 *   a member dies ──────────────┬─────────┬──────────────────┬─────────────────────┬──► LEFT at all
 *                 suspicion_timeout_ms  probe_timeout_ms   broadcast_batch_ms   claim_probe_timeout_ms
 *                                       + (watchers − 1) · stagger_ms   + the way of the news
 * ```
 *
 * So a death is known to all after at most the sum of these; with `lan`, 1.5 + 0.6 + 0.3 + 0.02 + 0.4 s and the ways.
 */
export interface GossipSettings {
  /**
   * How long news is gathered before it is told to all. Lower: sooner by as much; higher: fewer messages when much
   * happens at once.
   */
  broadcast_batch_ms: number;
  /**
   * Time between heartbeats. A member sends `watchers` / heartbeat_interval messages a second. Lower: silence is seen
   * sooner; higher: fewer messages.
   */
  heartbeat_interval_ms: number;
  /**
   * Time between heartbeats to gateways, which show load. Higher: less to read where thousands of members send to a few
   * gateways.
   */
  load_ms: number;
  /**
   * Members that watch over a member: the next ones on the ring of names. A death goes unseen where all of them die
   * with it. Higher: safer against that; lower: fewer heartbeats.
   */
  watchers: number;
  /**
   * Silence after which a watcher probes, at least 3 · heartbeat_interval_ms: heartbeats get lost, all of them in one
   * silence by loss^(suspicion_timeout / heartbeat_interval). Lower: deaths are seen sooner; higher: fewer probes.
   */
  suspicion_timeout_ms: number;
  /**
   * How long a watcher waits for the answer to a probe, above the longest way there, to another and back. Lower:
   * sooner; higher: fewer false alarms.
   */
  probe_timeout_ms: number;
  /**
   * How much longer the second and the third watcher wait, so that mostly one speaks: the r-th waits probe_timeout + r
   * · stagger. Lower: sooner where the first died too; higher: fewer tombstones of one death.
   */
  stagger_ms: number;
  /**
   * Silence that is allowed to a member that this one never heard: it may be just beginning. Lower: those who died
   * before anybody heard them are found sooner.
   */
  unheard_ms: number;
  /**
   * Members that are asked to probe too. A false alarm needs all ways to fail: loss^2 directly, loss^4 each way around,
   * so loss^(2 + 4 · indirect_probes). Lower: fewer messages; higher: fewer false alarms.
   */
  indirect_probes: number;
  /**
   * Mean time between two push-pulls (comparisons of the tables of two members): what news missed is found so, after
   * about log2(members) of them. Lower: sooner; higher: fewer messages.
   */
  push_pull_interval_ms: number;
  /**
   * The same after one that found a difference. Lower: what much news at once has missed is found sooner; more
   * push-pulls while members come and go.
   */
  push_pull_soon_ms: number;
  /**
   * Share of push-pulls with members that are thought to have left: this is how the halves of a partition meet again,
   * after about push_pull_interval / (share · members).
   */
  push_pull_left_share: number;
  /** Of the others, the share with any member instead of one that is linked anyway. Higher: more connections. */
  push_pull_far_share: number;
  /**
   * How long a member that others say is gone has to answer. Until all know of a death, this comes on top. Lower:
   * sooner; higher: fewer are taken for gone that are only slow, until they show that they live.
   */
  claim_probe_timeout_ms: number;
  /**
   * Least time between two probes of a member that others say is gone. Lower: more messages while somebody says so
   * without end; higher: a true loss right after a false claim counts later.
   */
  claim_again_ms: number;
  /**
   * Such members that are probed in one go, and a second. Lower: the loss of many at once counts later, the n-th after
   * (n − burst) / per_s; higher: more messages and connections while somebody says it of all.
   */
  claim_burst: number;
  claims_per_s: number;
  /**
   * Least time between two records by which a session shows that it lives. Lower: seen alive again sooner; higher: less
   * news while somebody says that it is gone.
   */
  refute_ms: number;
  /**
   * Entries, and bytes of their envelopes, in one message at most; larger ones do not count. Lower: more messages;
   * higher: longer turns of the event loop.
   */
  entries_max: number;
  envelope_bytes_max: number;
  /**
   * Messages a second that one sender may send; what is above does not count. Lower: less to do for one that
   * misbehaves; higher: more news at once passes.
   */
  messages_per_s: number;
  /**
   * The same of what a member passes on to all, which is one of each that comes back where a partition heals. Lower:
   * less to verify; what is above is found by push-pulls, later.
   */
  announcements_per_s: number;
}

/** What does not depend on how far members are from each other. */
const common = {
  watchers: 3,
  push_pull_left_share: 0.3,
  push_pull_far_share: 0.25,
  claim_burst: 1024,
  claims_per_s: 64,
  entries_max: 256,
  envelope_bytes_max: 192 * 1024,
  messages_per_s: 400,
  announcements_per_s: 2000,
} satisfies Partial<GossipSettings>;

/** By how far members are from each other. Every member of a mesh has the same; `lan` is what meshes have. */
export const gossipPresets = {
  /** Processes of one machine: ways of less than a millisecond, and nothing lost. */
  local: {
    ...common,
    broadcast_batch_ms: 5,
    heartbeat_interval_ms: 200,
    load_ms: 1000,
    suspicion_timeout_ms: 600,
    probe_timeout_ms: 200,
    stagger_ms: 50,
    unheard_ms: 1500,
    indirect_probes: 1,
    push_pull_interval_ms: 1000,
    push_pull_soon_ms: 150,
    claim_probe_timeout_ms: 150,
    claim_again_ms: 500,
    refute_ms: 1000,
  },
  /** Nodes of a cluster, and sites a few milliseconds apart. */
  lan: {
    ...common,
    broadcast_batch_ms: 20,
    heartbeat_interval_ms: 500,
    load_ms: 2000,
    suspicion_timeout_ms: 1500,
    probe_timeout_ms: 600,
    stagger_ms: 150,
    unheard_ms: 3000,
    indirect_probes: 3,
    push_pull_interval_ms: 2000,
    push_pull_soon_ms: 300,
    claim_probe_timeout_ms: 400,
    claim_again_ms: 1000,
    refute_ms: 2000,
  },
  /** Sites of several continents: ways of 100 ms and more, which lose messages. */
  wan: {
    ...common,
    broadcast_batch_ms: 100,
    heartbeat_interval_ms: 1000,
    load_ms: 4000,
    suspicion_timeout_ms: 5000,
    probe_timeout_ms: 2000,
    stagger_ms: 500,
    unheard_ms: 10_000,
    indirect_probes: 3,
    push_pull_interval_ms: 5000,
    push_pull_soon_ms: 1000,
    claim_probe_timeout_ms: 1500,
    claim_again_ms: 4000,
    refute_ms: 5000,
  },
} as const satisfies Record<string, GossipSettings>;
