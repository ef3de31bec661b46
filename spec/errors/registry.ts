/** The error registry: every code the project can answer with, collected from one file a room. */
import { agentErrors } from './agent.ts';
import { cliErrors } from './cli.ts';
import { controlErrors } from './control.ts';
import type { ErrorEntry } from './define.ts';
import { engineErrors } from './engine.ts';
import { gatewayErrors } from './gateway.ts';
import { loginErrors } from './login.ts';
import { memoryErrors } from './memory.ts';
import { modelErrors } from './model.ts';
import { servingErrors } from './serving.ts';
import { simulatorErrors } from './simulator.ts';
import { slurmErrors } from './slurm.ts';
import { specErrors } from './spec.ts';
import { transferErrors } from './transfer.ts';

const entries = {
  ...specErrors,
  ...modelErrors,
  ...slurmErrors,
  ...simulatorErrors,
  ...controlErrors,
  ...agentErrors,
  ...engineErrors,
  ...memoryErrors,
  ...transferErrors,
  ...servingErrors,
  ...gatewayErrors,
  ...loginErrors,
  ...cliErrors,
};

export type ErrorCode = keyof typeof entries;

export const errorRegistry: Readonly<Record<ErrorCode, ErrorEntry>> = entries;
