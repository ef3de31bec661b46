/** Child process of the kill -9 test: records without end, and prints each id when the ledger says it is safe. */
import { writeSync } from 'node:fs';
import { openLedger } from '../../ledger/index.ts';

const { ledger } = openLedger(process.argv[2]!);
let count = 0;

function next(): void {
  const request_id = `req_${count++}`;
  ledger.record(
    {
      request_id,
      time_ms: Date.now(),
      key_id: 'key_1',
      endpoint: '/v1/chat/completions',
      model: 'm',
      status: 200,
      stream: false,
      attempts: 1,
      duration_ms: 1,
    },
    (error) => {
      if (error) throw error;
      print(`${request_id}\n`);
      next();
    },
  );
}
/** Synchronous: what was printed has left this process when the next record is made. Waits where a pipe is full. */
function print(text: string): void {
  for (;;) {
    try {
      writeSync(1, text);
      return;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

for (let lane = 0; lane < 8; lane++) next();
