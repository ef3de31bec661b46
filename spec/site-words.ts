/** Kinds of text in site configs. */
import { z } from 'zod';
import { slurmDurationPattern } from './slurm-types.ts';

/** Text that ends up on one line of a script: no line breaks, no other control characters. */
export const oneLine = z
  .string()
  .min(1)
  .regex(/^[^\u0000-\u001f\u007f]+$/, 'one line without control characters');
/** Such text without spaces. */
export const oneWord = oneLine.regex(/^\S+$/, 'one word without spaces');
/** One partition of Slurm, or several of which it takes the first that can start. */
export const partitions = z.union([oneWord, z.array(oneWord).min(1)]);
export const duration = z.union([
  z.string().regex(slurmDurationPattern, 'a duration as Slurm writes it: MM, HH:MM:SS or D-HH:MM:SS'),
  z.int().min(1),
]);
/** The same as text: minutes without quotes are a number to YAML. */
export const durationText = duration.transform(String);
