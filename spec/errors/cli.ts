import { defineErrors } from './define.ts';

export const cliErrors = defineErrors({});
