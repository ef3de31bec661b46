/** Formats of JSON Schema strings as GBNF for the content between the quotes. */

const date =
  '[0-9]{4} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))';
const hourMinute = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]';
const time = `${hourMinute} ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [+-] ${hourMinute})`;
const octet = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9])';
const label = '[a-z0-9] ([a-z0-9-]{0,30} [a-z0-9])?';
const hostname = `${label} ("." ${label}){0,4}`;

/** RFC 3339, RFC 9562, RFC 2673, RFC 4291, RFC 1123, RFC 3986: each a subset that every validator accepts. */
export const stringFormats: Readonly<Record<string, string>> = {
  date,
  time,
  'date-time': `${date} "T" ${time}`,
  uuid: '[0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{12}',
  ipv4: `${octet} ("." ${octet}){3}`,
  ipv6: '[0-9a-fA-F]{1,4} (":" [0-9a-fA-F]{1,4}){7}',
  hostname,
  email: `[a-z0-9]{1,20} ("." [a-z0-9]{1,20}){0,3} "@" ${label} ("." ${label}){1,3}`,
  uri: `("http" | "https") "://" ${hostname} ("/" [a-zA-Z0-9_~.-]{0,60}){0,8}`,
};
