/** What somebody who knew the future could make of idle devices: the bar that policies are held against. */
import type { TakenStep } from './cluster.ts';

/**
 * Device-seconds of serving, were a replica of `devices` devices to start at the very begin of each idle interval that
 * is longer than its load, and to leave at its very end: no limit of wall time, no queue, no look too late. Within a
 * node the intervals of its first free places hold those of its further ones, so each place is counted alone.
 *
 * @param taken devices that others take of each node, by time
 */
export function oracleDeviceTime_s(
  taken: readonly (readonly TakenStep[])[],
  seconds: number,
  devices_per_node: number,
  replica: { devices: number; load_s: number },
): number {
  const places = Math.floor(devices_per_node / replica.devices);
  let served_s = 0;
  for (const steps of taken)
    for (let place = 1; place <= places; place++) {
      let since_s: number | undefined;
      const close = (at_s: number): void => {
        if (since_s !== undefined) served_s += Math.max(0, at_s - since_s - replica.load_s);
        since_s = undefined;
      };
      for (const { at_s, devices } of steps) {
        const fits = devices_per_node - devices >= place * replica.devices;
        if (fits) since_s ??= at_s;
        else close(at_s);
      }
      close(seconds);
    }
  return served_s * replica.devices;
}
