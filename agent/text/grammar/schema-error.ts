import { HpcserveError } from '../../../spec/errors/error.ts';

/** Where in a schema the compiler is, such as `response_format.json_schema.schema.properties.age`. */
export type SchemaPath = readonly string[];

/** Of a name that a client made up, what a message shows. */
const shown_chars_max = 64;

export function refuseSchema(path: SchemaPath, what: string, advice?: string): never {
  const param = path.map(shortened).join('.');
  throw new HpcserveError('E_REQUEST_SCHEMA', {
    what: `${param}: ${what}`,
    try: advice,
    details: { param },
  });
}

/** A name of a request as messages show it: whole unless nobody would read it. */
export function shortened(name: string): string {
  return name.length > shown_chars_max ? `${name.slice(0, shown_chars_max)}…` : name;
}
