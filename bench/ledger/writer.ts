/** A process to be killed: records without end, and prints each id when the ledger says that it is safe. */
import { writeSync } from 'node:fs';
import { openLedger } from '../../ledger/index.ts';
import { Population } from './population.ts';

const [path, round] = process.argv.slice(2) as [string, string];
const { ledger } = openLedger(path);
const population = new Population(Number(round) + 1, Date.UTC(2026, 0, 1), 1);
const lanes = 32;
let count = 0;

function next(): void {
  const request_id = `req_${round}_${count++}`;
  ledger.record({ ...population.next(), request_id }, (error) => {
    if (error) throw error;
    // Synchronous: what was printed has left this process when the next record is made.
    writeSync(1, `${request_id}\n`);
    next();
  });
}
for (let lane = 0; lane < lanes; lane++) next();
