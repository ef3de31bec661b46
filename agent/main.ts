/**
 * The node agent: started once on each node of a job (by srun, or as a child on the local site).
 * `node dist/agent/main.js --launch FILE [--node-index N] [--node NAME]`
 * With `--probe ENGINE [-- WORDS…]` it says what an installed engine can do, and ends.
 */
import { runProgram } from '../host/programs.ts';

await runProgram('agent', () => import('./run-agent.ts'));
