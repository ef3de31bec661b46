import { defineErrors } from './define.ts';

export const agentErrors = defineErrors({});
