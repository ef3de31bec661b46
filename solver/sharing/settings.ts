/** What a site may tune of sharing one device among models; every default is LLM-Mesh's where the paper has one. */
export interface SharingSettings {
  /**
   * Share added to every estimated iteration (LLM-Mesh §5.3: 0.1), for noise and for sequences that grow. Higher: fewer
   * broken promises and fewer requests admitted; 0 trusts the profile.
   */
  overestimate: number;
  /**
   * Share of the expected growth of sequences that the decode test looks ahead, 0 to 1. 0 judges today's lengths, as
   * the paper does; 1 the lengths at which requests are expected to end, so that exact estimates break no promise.
   * Between them results differ by less than the choice of a seed; on seeds held out a quarter did best, by half a
   * percent (`bench -- sharing`).
   */
  growth_share: number;
  /** Most prompt tokens of one iteration. Lower: others wait less for a long prompt; higher: prompts compute faster. */
  prefill_chunk_tokens_max: number;
  /** A prompt is never cut finer than this: below, reading the weights again costs more than it saves. */
  prefill_chunk_tokens_min: number;
  /**
   * Prompts run as soon as every stream of tokens can wait for them, not only when they are the most urgent: requests
   * join the batch sooner, so the same tokens take fewer iterations. False is the paper's plain order by headroom.
   */
  early_prefill: boolean;
  /**
   * Where every stream has at least this headroom left, spare time goes to the instance that is nearest to its end: the
   * same iterations, but it frees its place sooner. Infinity is the paper's plain order by headroom; less than a
   * prompt's time leaves no room for newcomers.
   */
  drain_headroom_ms: number;
  /** False takes whatever fits into memory, as schedulers without deadlines do: for comparison. */
  shadow_validation: boolean;
  /** Iterations that a validation simulates at most; a request whose prompt is not done by then is refused. */
  validation_iterations_max: number;
  /** Watermark w of LLM-Mesh §6.2: room for KV beyond what is required. Higher: fewer resizes, more memory held. */
  kv_watermark: number;
  /** Least KV room of an instance in tokens, L_min of Eq. 2; the longest sequence in practice. */
  kv_tokens_min: number;
  /** CPUs are asked before GPUs, so that GPUs stay free for what only they can serve (LLM-Mesh §4). */
  cpu_first: boolean;
  /** Requests go to the fullest instance of their model, new instances to the fullest device (§7.2); else evenly. */
  bin_packing: boolean;
  /** A larger instance may push a smaller neighbour off its device where that one's requests fit elsewhere (§7.1). */
  preemption: boolean;
  /** Requests of the smaller of two instances of a model move to the larger where they fit; else it runs dry (§7.2). */
  consolidation: boolean;
  /**
   * Whether the time until a model is there counts against the SLO of who asked for it. False: what is promised counts
   * from when it is there, and a request is let in where the device could serve it then.
   */
  cold_start_counts: boolean;
  /** How long an instance without requests keeps its place. Higher: fewer loads, more memory held. */
  keep_alive_ms: number;
}

export const defaultSharingSettings: SharingSettings = {
  overestimate: 0.1,
  growth_share: 0.25,
  prefill_chunk_tokens_max: 2048,
  prefill_chunk_tokens_min: 256,
  early_prefill: true,
  drain_headroom_ms: 1000,
  shadow_validation: true,
  validation_iterations_max: 128,
  kv_watermark: 0.25,
  kv_tokens_min: 4096,
  cpu_first: true,
  bin_packing: true,
  preemption: true,
  consolidation: true,
  cold_start_counts: true,
  keep_alive_ms: 1000,
};
