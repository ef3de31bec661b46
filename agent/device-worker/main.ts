/** Entry of the device worker. */
import { runProgram } from '../../host/programs.ts';

await runProgram('device-worker', () => import('./run-device-worker.ts'));
