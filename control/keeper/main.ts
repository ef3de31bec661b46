/**
 * Entry of the keeper as a process of its own: `--site FILE --state-dir FOLDER [--gateway-config FILE]`. Its log is one
 * JSON object a line. With the last, it is in the gateway's job and starts the gateway beside itself.
 */
import { runProgram } from '../../host/programs.ts';

await runProgram('keeper', () => import('./run-keeper.ts'));
