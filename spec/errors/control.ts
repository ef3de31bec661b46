import { defineErrors } from './define.ts';

export const controlErrors = defineErrors({});
