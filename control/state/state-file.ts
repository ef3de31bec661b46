/** JSON files in the state folder that other processes write, perhaps of another version. */
import { z } from 'zod';
import { readJsonIfThere } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** @returns undefined where there is none. @throws E_STATE_FOLDER with what is wrong with it */
export function readStateFile<Schema extends z.ZodType>(
  path: string,
  schema: Schema,
): z.infer<Schema> | undefined {
  let json: unknown;
  try {
    json = readJsonIfThere(path);
  } catch (error) {
    throw damaged(path, (error as Error).message, error);
  }
  if (json === undefined) return undefined;
  const read = schema.safeParse(json, { jitless: true });
  if (read.success) return read.data;
  throw damaged(path, z.prettifyError(read.error), read.error);
}

function damaged(path: string, because: string, cause: unknown): HpcserveError {
  return new HpcserveError('E_STATE_FOLDER', { what: `${path} cannot be read`, because, cause });
}
