import type { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';

/** @throws E_REQUEST_INVALID with what is wrong */
export function parseWith<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  throw new HpcserveError('E_REQUEST_INVALID', {
    what: 'the request does not have the form that this path takes',
    because: result.error.issues.map(({ path, message }) => `${path.join('.') || 'body'}: ${message}`),
  });
}
