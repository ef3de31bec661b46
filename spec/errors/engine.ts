import { defineErrors } from './define.ts';

export const engineErrors = defineErrors({});
