import { HpcserveError } from '../../../spec/errors/error.ts';

/** Where in a schema the compiler is, such as `response_format.json_schema.schema.properties.age`. */
export type SchemaPath = readonly string[];

export function refuseSchema(path: SchemaPath, what: string, advice?: string): never {
  throw new HpcserveError('E_REQUEST_SCHEMA', {
    what: `${path.join('.')}: ${what}`,
    ...(advice === undefined ? {} : { try: advice }),
    details: { param: path.join('.') },
  });
}
