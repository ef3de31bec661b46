/**
 * `node idle-load.js SHARE`: takes a share of one core by computing nothing, in turns of 10 ms, until its input ends.
 */
import { setTimeout as sleep } from 'node:timers/promises';

const turn_ms = 10;
const share = Number(process.argv[2]);
let over = false;
process.stdin.resume().on('end', () => {
  over = true;
});
while (!over) {
  const busy_until_ms = performance.now() + share * turn_ms;
  while (performance.now() < busy_until_ms);
  await sleep((1 - share) * turn_ms);
}
