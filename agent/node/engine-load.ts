import type { EngineLoad } from '../adapters/adapter.ts';

/** Requests of an engine: computed, and waiting for a place. */
interface EngineRequests {
  running: number;
  waiting: number;
}

/**
 * What an engine has to do now. Its own figures are as old as the last look at its metrics; who has sent it requests
 * since knows of them, and routes the next ones by it. One request may be several sequences, and others may ask it
 * too, so that its figures count where they say more. Pure.
 *
 * @param said its figures; absent where it does not say
 * @param in_flight_then requests under way as it said so
 * @param in_flight requests under way now
 */
export function engineRequests(
  said: Pick<EngineLoad, 'running' | 'waiting'>,
  in_flight_then: number,
  in_flight: number,
  max_sequences: number,
): EngineRequests {
  const { running = 0, waiting = 0 } = said;
  const requests = Math.max(in_flight, running + waiting + in_flight - in_flight_then);
  // One that lets requests wait has no room for more, whatever its places: its keys and values are full.
  const places = waiting > 0 ? Math.min(running, max_sequences) : max_sequences;
  const computed = Math.min(requests, places);
  return { running: computed, waiting: requests - computed };
}
