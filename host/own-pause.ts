/**
 * How long a process stood still itself, by a time at which it meant to wake and the one at which it did: it was
 * suspended, or busy with something else. Whoever judges others by their silence adds it to their time, since what
 * they said meanwhile is not read yet.
 *
 * @param tolerance_ms so late every process is now and then. Lower: short pauses are forgiven too; higher: fewer delays
 */
export function ownPause_ms(due_ms: number, now_ms: number, tolerance_ms: number): number {
  const late_ms = now_ms - due_ms;
  return late_ms < tolerance_ms ? 0 : late_ms;
}
