/** Kinds of text in site configs. */
import { z } from 'zod';

/** Text that ends up on one line of a script: no line breaks, no other control characters. */
export const oneLine = z
  .string()
  .min(1)
  .regex(/^[^\u0000-\u001f\u007f]+$/, 'one line without control characters');
/** Such text without spaces. */
export const oneWord = oneLine.regex(/^\S+$/, 'one word without spaces');
