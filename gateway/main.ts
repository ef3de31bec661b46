/**
 * Process of the gateway: `node dist/gateway/main.js --config FILE`. Logs JSON lines on stdout. Usually its holder
 * starts it (holder/main.ts), with the listening sockets that it holds already.
 */
import { runProgram } from '../host/programs.ts';

await runProgram('gateway', () => import('./run-gateway.ts'));
