/** Bounds of transfers: nothing waits longer, and nobody asks for more. */

/**
 * Without a byte. Lower: a peer that hangs is given up sooner; higher: busy nodes are given time, which is theirs from
 * computing anew.
 */
export const silence_ms = 3000;
/** Until both ends of a way have met, and for an answer to a message. Higher: very slow links; lower: less waiting. */
export const meeting_ms = 5000;
/**
 * A transfer that is slower is given up: computing the tokens again is as fast. Lower: slow links are used; higher:
 * slow peers are given up sooner.
 */
const rate_bytes_per_s_min = 16 * 1024 * 1024;
/** What peers may announce. Higher: larger sequences and pools; lower: less that a broken peer makes us do. */
export const transfer_bytes_max = 1024 ** 4;
export const runs_max = 65_536;
export const pieces_max = 1_048_576;
/** Of one sequence. Higher: longer contexts; lower: shorter messages. */
export const tokens_max = 4 * 1024 * 1024;
/** Of a message between workers, as JSON. */
export const message_bytes_max = 64 * 1024 * 1024;
/** Ways that peers hold open here. Lower: less memory and fewer threads; higher: larger pipelines. */
export const links_max = 64;
/** Sequences whose generation is remembered; those that were heard of longest ago are forgotten. */
export const generations_max = 65_536;
/** In which a peer is told that its way is closed. Lower: less waiting for one that is gone. */
export const farewell_ms = 500;
/** A way that failed is not tried again with this peer for so long. */
export const failed_way_ms = 60_000;

/** How long a transfer of so many bytes may take as a whole. */
export function transferLimit_ms(bytes: number): number {
  return Math.ceil(meeting_ms + (1000 * bytes) / rate_bytes_per_s_min);
}
