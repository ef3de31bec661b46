/** What the holder does when its gateway has ended; pure. */

/** One that lived so long did not die at once, ms. Lower: what dies again and again is started more often. */
const settled_ms = 60_000;
/**
 * Before the second of several quick ends, and at most, ms; doubled each time. Higher: kinder to a machine in trouble.
 */
const first_pause_ms = 1000;
const pause_ms_max = 30_000;
/** Exit code of a gateway whose folder belongs to another one. */
const folder_lost = 10;

export interface GatewayEnd {
  code: number;
  lived_ms: number;
  /** Any gateway of this holder has listened: there is an address that clients know. */
  has_listened: boolean;
  /** The holder was told to end. */
  is_told: boolean;
  /** How many before this one died at once, one after the other. */
  quick_ends: number;
}

export type AfterEnd = { do: 'end'; code: number } | { do: 'start'; pause_ms: number; quick_ends: number };

/**
 * A gateway that never listened is whoever started it to judge. After that the address is kept, and the gateway is
 * started again for as long as nobody says otherwise: at once, and with growing pauses where that does not help.
 */
export function afterEnd({ code, lived_ms, has_listened, is_told, quick_ends }: GatewayEnd): AfterEnd {
  if (is_told) return { do: 'end', code };
  if (!has_listened || code === folder_lost) return { do: 'end', code: code === 0 ? 1 : code };
  if (lived_ms >= settled_ms) return { do: 'start', pause_ms: 0, quick_ends: 0 };
  return {
    do: 'start',
    pause_ms: quick_ends === 0 ? 0 : Math.min(pause_ms_max, first_pause_ms * 2 ** (quick_ends - 1)),
    quick_ends: quick_ends + 1,
  };
}
