import { defineErrors } from './define.ts';

export const slurmErrors = defineErrors({});
