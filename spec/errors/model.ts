import { defineErrors } from './define.ts';

export const modelErrors = defineErrors({});
