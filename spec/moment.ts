const moment = /^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)(Z|[+-]\d{2}:\d{2})?)?$/;

/**
 * Unix ms of a day or time in ISO 8601: `2026-01-31`, `2026-01-31T09:30`, `2026-01-31T09:30:15+01:00`. Without an
 * offset it is of UTC, as the hours, days and months of usage are: a day is its midnight, wherever it is read.
 *
 * @returns undefined where it is none, or no calendar has that day
 */
export function momentOf_ms(text: string): number | undefined {
  const [, day, time = '00:00', offset = 'Z'] = moment.exec(text) ?? [];
  if (day === undefined) return undefined;
  const midnight_ms = Date.parse(`${day}T00:00Z`);
  // JavaScript takes the 31st of February for the 3rd of March.
  if (Number.isNaN(midnight_ms) || !new Date(midnight_ms).toISOString().startsWith(day)) return undefined;
  const time_ms = Date.parse(`${day}T${time}${offset}`);
  return Number.isNaN(time_ms) ? undefined : time_ms;
}
