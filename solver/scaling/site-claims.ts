/**
 * What a keeper does between a division and its own replicas: whom it counts, and when it acts. Pure: state goes in and
 * comes out, so that a keeper that is started again goes on where it was.
 */

/**
 * What a site is about to have is known to the others for so long before it does it, ms: longer than a statement
 * travels there and another one back. Lower: replicas start sooner; higher: slower links, and still no two sites that
 * start the same one.
 */
export const settle_ms = 6_000;

/** Replicas that a site said it is about to have. */
export interface SiteClaim {
  replicas: number;
  /** Since when its gateway publishes that; absent: not yet. */
  published_ms?: number;
}

export interface ClaimInputs {
  claim: SiteClaim;
  /** What the division says now. */
  target: number;
  /** What its gateway publishes as the claim. */
  published?: number;
  now_ms: number;
}

/** @returns the claim from now on, and how many replicas there are to be once nobody can object any more */
export function stepClaim({ claim, target, published, now_ms }: ClaimInputs): {
  claim: SiteClaim;
  act?: number;
} {
  if (claim.replicas !== target) return { claim: { replicas: target } };
  if (published !== target) return { claim: { replicas: target } };
  const since_ms = claim.published_ms ?? now_ms;
  const next: SiteClaim = { replicas: target, published_ms: since_ms };
  return now_ms - since_ms >= settle_ms ? { claim: next, act: target } : { claim: next };
}

/** When another site was heard last, by the clock of who listens. */
export interface LastHeard<T> {
  /** Of the statement: it changes while the site lives. */
  at: number;
  heard_ms: number;
  /** Absent: nothing was heard since it is listened to. */
  said?: T;
}

/** @param said what the newest statement holds of the model; absent: nothing */
export function hearSite<T>(
  before: LastHeard<T> | undefined,
  said: { at: number; said: T } | undefined,
  now_ms: number,
): LastHeard<T> {
  if (said !== undefined && said.at !== before?.at) return { ...said, heard_ms: now_ms };
  return before ?? { at: -1, heard_ms: now_ms };
}

/**
 * `waited_for`: nothing is decided before it spoke or was silent for long enough; `silent`: the others do without it.
 */
export type SitePresence = 'there' | 'waited_for' | 'silent';

export function sitePresence(
  { said, heard_ms }: LastHeard<unknown>,
  now_ms: number,
  silent_ms: number,
): SitePresence {
  if (now_ms - heard_ms >= silent_ms) return 'silent';
  return said === undefined ? 'waited_for' : 'there';
}
